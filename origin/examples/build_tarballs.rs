//! What tarballs cost: builds the commits that are named, one after the other, each with the blob of the one before to
//! take fragments from, as an origin does.
//!
//! `cargo run --release -p weir-origin --example build_tarballs -- [--threads N] [--cold] REPOSITORY REVISION...` prints a
//! line for each: wall time, processor time of this process, what was made and what was taken over, and the most memory
//! that was not file pages. `--cold` takes nothing over. At the end: how long the key of an unchanged folder takes, and
//! SHA-256 over as many bytes, alone.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use weir_origin::blob_store::BlobStore;
use weir_origin::tarball::{Built, Earlier, Limits, Means, Selection, build, content_key};
use weir_shared::commit_id::CommitId;

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 2)]
    threads: usize,
    #[arg(long)]
    cold: bool,
    repository: PathBuf,
    #[arg(required = true)]
    revisions: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let repo = gix::open_opts(&arguments.repository, gix::open::Options::isolated())?.into_sync();
    let local = repo.to_thread_local();
    let dir = tempfile::tempdir()?;
    let store = BlobStore::open(dir.path())?;
    let (limits, selection) = (Limits::default(), Selection::default());
    let mut earlier = None;
    let mut last = None;
    for revision in &arguments.revisions {
        let commit: CommitId = local.rev_parse_single(revision.as_str())?.to_string().parse()?;
        let mut blob = earlier
            .as_ref()
            .map_or_else(|| store.temporary(), |earlier: &Earlier| store.temporary_after(earlier.blob()))?;
        let means = Means {
            limits: &limits,
            threads: arguments.threads,
            earlier: earlier.as_ref(),
            lfs: None,
            interrupt: &AtomicBool::new(false),
        };
        let (built, cost) = measured(|| build(&repo, &commit, &selection, &means, &mut blob))?;
        blob.keep(&built.blob)?;
        store.keep_fragments(&built.blob, &built.fragments)?;
        print(revision, &built, &cost);
        if !arguments.cold {
            earlier = store.earlier(&built.blob);
        }
        last = Some((commit, built));
    }
    let (commit, built) = last.context("there is one revision at least")?;
    let begun = Instant::now();
    for _ in 0..100 {
        content_key(&local, &commit, &"shop".parse()?, &selection)?;
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

fn print(revision: &str, built: &Built, cost: &Cost) {
    println!(
        "{revision}: wall {:.2} s, cpu {:.2} s, {} of {} fragments taken over, tar {} MB, blob {} MB, {} entries, memory {} MB, {}",
        cost.wall.as_secs_f64(),
        cost.processor.as_secs_f64(),
        built.reused_fragments,
        built.fragments.fragments(),
        built.size / 1_000_000,
        built.blob_size / 1_000_000,
        built.entries,
        cost.memory_bytes / 1_000_000,
        built.blob,
    );
}

struct Cost {
    wall: Duration,
    processor: Duration,
    /// The most that was held, mapped files aside.
    memory_bytes: u64,
}

fn measured<T, E>(work: impl FnOnce() -> Result<T, E>) -> anyhow::Result<(T, Cost)>
where
    anyhow::Error: From<E>,
{
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
