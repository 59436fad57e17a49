//! What tarballs cost: builds the commits that are named, one after the other, each with the recipe of the one before to
//! take frames from, as an origin does, and stores frames as a store in a local folder does.
//!
//! `cargo run --release -p weir-origin --example build_tarballs -- [--threads N] [--cold] [--gzip] [--no-fsync] [--dir DIR]
//! REPOSITORY REVISION...` prints a line for each: wall time, processor time of this process, what was made and what was
//! reused, what was written, and the most memory that was not file pages. `--cold` reuses nothing; `--no-fsync` does not
//! wait for the disk. At the end: how long the key of an unchanged folder takes, and SHA-256 over as many bytes, alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use clap::Parser;
use object_store::ObjectStoreExt as _;
use object_store::local::LocalFileSystem;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use weir_git::tree::{GitTree, content_key};
use weir_protocol::commit_id::CommitId;
use weir_protocol::digest::ObjectDigest;
use weir_tarball::{Base, BuildContext, Built, FrameSink, Limits, Recipe, Selection, build};

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 2)]
    threads: usize,
    #[arg(long)]
    cold: bool,
    #[arg(long)]
    gzip: bool,
    #[arg(long)]
    no_fsync: bool,
    /// Where the frames go; a temporary folder by default.
    #[arg(long)]
    dir: Option<PathBuf>,
    repository: PathBuf,
    #[arg(required = true)]
    revisions: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let repository = gix::open_opts(&arguments.repository, gix::open::Options::isolated())?;
    let dir = match &arguments.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let limits = Limits::default();
    let selection = Selection { gzip: arguments.gzip, ..Selection::default() };
    let mut base = None;
    let mut last = None;
    for revision in &arguments.revisions {
        let commit: CommitId = repository.rev_parse_single(revision.as_str())?.to_string().parse()?;
        let sink = Folder::new(dir.path(), !arguments.no_fsync)?;
        let context = BuildContext {
            limits: &limits,
            threads: arguments.threads,
            base: base.as_ref(),
            interrupt: &AtomicBool::new(false),
        };
        let tree = GitTree { repository: repository.clone(), commit: commit.clone(), selection: &selection, lfs: None };
        let (built, cost) = measured(|| {
            let built = build(&tree, &selection, &context, &sink)?;
            sink.finish().map(|()| built)
        })?;
        let recipe = built.recipe.to_bytes();
        print(revision, &built, recipe.len(), &sink, &cost);
        if !arguments.cold {
            let path = dir.path().to_path_buf();
            base = Some(Base::new(Recipe::parse(&recipe)?, move |digest| read(&path, digest)));
        }
        last = Some((commit, built));
    }
    let (commit, built) = last.context("there is one revision at least")?;
    let begun = Instant::now();
    for _ in 0..100 {
        content_key(&repository, &commit, &"shop".parse()?, &selection)?;
    }
    println!("key of an unchanged folder: {:.3} ms", begun.elapsed().as_secs_f64() * 10.0);
    let megabyte = vec![7; 1 << 20];
    let mut sha256 = ring::digest::Context::new(&ring::digest::SHA256);
    let begun = Instant::now();
    for _ in 0..built.size >> 20 {
        sha256.update(&megabyte);
    }
    let _ = sha256.finish();
    println!("SHA-256 of as many bytes, alone: {:.3} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// The most frames that are being written.
const WRITES_IN_FLIGHT: usize = 16;

/// A file for each frame, as the origin's store in a local folder writes them, up to sixteen at once.
struct Folder {
    store: Arc<LocalFileSystem>,
    runtime: Runtime,
    permits: Arc<Semaphore>,
    failed: Arc<AtomicBool>,
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Folder {
    fn new(dir: &Path, fsync: bool) -> anyhow::Result<Self> {
        Ok(Self {
            store: Arc::new(LocalFileSystem::new_with_prefix(dir)?.with_fsync(fsync)),
            runtime: Runtime::new()?,
            permits: Arc::new(Semaphore::new(WRITES_IN_FLIGHT)),
            failed: Arc::default(),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Waits until all frames are durable.
    fn finish(&self) -> anyhow::Result<()> {
        drop(self.runtime.block_on(self.permits.acquire_many(WRITES_IN_FLIGHT as u32))?);
        anyhow::ensure!(!self.failed.load(Ordering::Relaxed), "a frame cannot be written");
        Ok(())
    }
}

impl FrameSink for Folder {
    fn put(&self, frame: Bytes) -> io::Result<ObjectDigest> {
        let digest = ObjectDigest::of(&frame);
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        let permit = self.runtime.block_on(self.permits.clone().acquire_owned()).map_err(io::Error::other)?;
        let (store, failed) = (self.store.clone(), self.failed.clone());
        self.runtime.spawn(async move {
            let written = store.put(&digest.hex().into(), frame.into()).await;
            failed.fetch_or(written.is_err(), Ordering::Relaxed);
            drop(permit);
        });
        Ok(digest)
    }
}

fn read(dir: &Path, digest: &ObjectDigest) -> io::Result<Bytes> {
    let bytes = fs::read(dir.join(digest.hex()))?;
    if ObjectDigest::of(&bytes) == *digest { Ok(bytes.into()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn print(revision: &str, built: &Built, recipe_bytes: usize, sink: &Folder, cost: &Cost) {
    let body: u64 = built.zstd.iter().map(|frame| frame.size).sum();
    println!(
        "{revision}: wall {:.2} s, cpu {:.2} s, {} of {} frames reused, {} files of {} kB written, tar {} MB, body {:.2} MB, recipe {} kB, {} entries, memory {} MB",
        cost.wall.as_secs_f64(),
        cost.processor.as_secs_f64(),
        built.reused_frames,
        built.zstd.len(),
        sink.files.load(Ordering::Relaxed),
        sink.bytes.load(Ordering::Relaxed) / 1000,
        built.size / 1_000_000,
        body as f64 / 1e6,
        recipe_bytes / 1000,
        built.entries,
        cost.memory_bytes / 1_000_000,
    );
}

struct Cost {
    wall: Duration,
    processor: Duration,
    /// The most that was held, mapped files aside.
    memory_bytes: u64,
}

fn measured<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Cost)> {
    let (begun, processor) = (Instant::now(), processor_time()?);
    let (most, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(private_bytes().unwrap_or_default(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })?;
    let cost =
        Cost { wall: begun.elapsed(), processor: processor_time()? - processor, memory_bytes: most.into_inner() };
    Ok((result, cost))
}

/// User and system time of all threads, in ticks of 10 ms.
fn processor_time() -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("a process has a name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(10 * ticks))
}

fn private_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}
