//! Makes a tarball: one thread walks, several decode and compress, the caller's thread hashes in order and writes.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use gix::ThreadSafeRepository;
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::Omission;
use weir_shared::digest::{BlobDigest, Sha256, TarballDigest};

use super::admission::Admission;
use super::cut::{self, Cutter};
use super::earlier::{Earlier, FragmentIndex, FragmentKey, IndexRow};
use super::folder;
use super::fragment::{Fragment, Plan, tar_bytes};
use super::walk::{Entry, Walked, walk};
use super::{Limits, Selection, TarballError};
use crate::lfs::LfsObjects;

/// A tarball that was made and written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// BLAKE3 of the tar.
    pub digest: TarballDigest,
    /// SHA-256 of the tar.
    pub sha256: Sha256,
    /// Bytes of the tar.
    pub size: u64,
    /// What the folder holds and the tar does not.
    pub omitted: Vec<Omission>,
    /// How many entries the tar has.
    pub entries: u64,
    /// BLAKE3 of the bytes that were written: the tar as zstd.
    pub blob: BlobDigest,
    /// How many bytes were written.
    pub blob_size: u64,
    /// What the blob is made of, for the builds that come after.
    pub fragments: FragmentIndex,
    /// How many of its fragments were taken over from an earlier blob.
    pub reused_fragments: usize,
}

/// What a build may use.
#[derive(Debug, Clone, Copy)]
pub struct Means<'a> {
    /// What the tarball may not exceed.
    pub limits: &'a Limits,
    /// How many threads decode and compress (at least one does); one more walks, and the calling thread writes.
    pub threads: usize,
    /// A blob to take fragments from. The result does not depend on it, the time does.
    pub earlier: Option<&'a Earlier>,
    /// Where the LFS objects are that a selection asks for.
    pub lfs: Option<&'a LfsObjects>,
    /// Set it to stop the build.
    pub interrupt: &'a AtomicBool,
}

/// A plan with its place in the tarball.
struct Job {
    place: u64,
    plan: Plan,
}

/// What came of a job; the bytes are those that it was admitted with.
struct Done {
    place: u64,
    bytes: u64,
    key: FragmentKey,
    result: Result<Fragment, TarballError>,
}

/// Makes the tarball of a selection at a commit and writes it, as zstd, to `out`. The bytes depend on the commit and the
/// selection, and on nothing else.
///
/// In memory at once: at most `threads + 2` fragments of up to 8 MiB, or one larger file.
///
/// # Errors
/// See [`TarballError`]. What was written to `out` by then is of no use.
pub fn build(
    repo: &ThreadSafeRepository,
    commit: &CommitId,
    selection: &Selection,
    means: &Means<'_>,
    out: &mut dyn Write,
) -> Result<Built, TarballError> {
    let Means { limits, threads, interrupt, .. } = *means;
    let threads = threads.max(1);
    let admission = Admission::new(threads + 2, (threads as u64 + 2) * cut::MAX_BYTES);
    let (jobs, next_job) = channel::<Job>();
    let next_job = Mutex::new(next_job);
    let (done, finished) = channel::<Done>();
    std::thread::scope(|scope| {
        let admission = &admission;
        let walker = scope.spawn(move || {
            let (cutter, plan) = (Cutter::default(), Plan::default());
            let mut planner = Planner { admission, jobs, place: 0, bytes: 0, limits, cutter, plan };
            walk_and_plan(repo, commit, selection, means, &mut planner)
        });
        for _ in 0..threads {
            let (done, next_job) = (done.clone(), &next_job);
            scope.spawn(move || {
                let _guard = CloseOnPanic(admission);
                work(repo, next_job, &done, means);
            });
        }
        drop(done);
        let _guard = CloseOnPanic(admission);
        let mut output = Output::new(out, limits);
        let written = output.write_all(&finished, admission, interrupt);
        // Whoever still works on what nobody will write is sent away.
        admission.close();
        drop(finished);
        let walked = walker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The walk's own failure is the reason; that the output ended early is its consequence.
        match (walked, written) {
            (Err(Stop::Failed(error)), _) | (_, Err(error)) => Err(error),
            (Err(Stop::Unwanted), Ok(())) => Err(TarballError::Interrupted),
            (Ok(walked), Ok(())) if walked.entries == 0 => Err(TarballError::Empty),
            (Ok(walked), Ok(())) => Ok(output.finish(walked)),
        }
    })
}

/// Lets the other threads end when one panics, so that the panic is seen and not waited for.
struct CloseOnPanic<'a>(&'a Admission);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close();
        }
    }
}

/// Why a walk ended early.
enum Stop {
    Failed(TarballError),
    /// The writer gave up first and has the reason.
    Unwanted,
}

fn walk_and_plan(
    repo: &ThreadSafeRepository,
    commit: &CommitId,
    selection: &Selection,
    means: &Means<'_>,
    planner: &mut Planner<'_>,
) -> Result<Walked, Stop> {
    let repo = repo.to_thread_local();
    let folder = folder::find(&repo, commit, &selection.folder).map_err(Stop::Failed)?;
    let mut unwanted = false;
    let walked = walk(&repo, folder, selection, (means.limits, means.interrupt), &mut |entry| {
        unwanted = !planner.add(entry)?;
        if unwanted { Err(TarballError::Interrupted) } else { Ok(()) }
    });
    if unwanted {
        return Err(Stop::Unwanted);
    }
    let walked = walked.map_err(Stop::Failed)?;
    if walked.entries > 0 {
        let mut last = std::mem::take(&mut planner.plan);
        last.mark_last();
        if !planner.send(last).map_err(Stop::Failed)? {
            return Err(Stop::Unwanted);
        }
    }
    Ok(walked)
}

/// Sends plans to the workers as there is room for them.
struct Planner<'a> {
    admission: &'a Admission,
    jobs: Sender<Job>,
    place: u64,
    bytes: u64,
    limits: &'a Limits,
    cutter: Cutter,
    plan: Plan,
}

impl Planner<'_> {
    /// `false` when nobody wants it any more.
    fn add(&mut self, entry: Entry) -> Result<bool, TarballError> {
        let mut wanted = true;
        if self.cutter.begins(&entry.path, tar_bytes(&entry)) {
            let finished = std::mem::take(&mut self.plan);
            wanted = self.send(finished)?;
        }
        self.plan.add(entry);
        Ok(wanted)
    }

    /// `false` when nobody wants it any more.
    fn send(&mut self, plan: Plan) -> Result<bool, TarballError> {
        self.bytes += plan.bytes();
        if self.bytes > self.limits.max_tarball_bytes {
            return Err(TarballError::TooLarge { limit: self.limits.max_tarball_bytes });
        }
        let wanted = self.admission.enter(plan.bytes());
        let place = self.place;
        self.place += 1;
        Ok(wanted && self.jobs.send(Job { place, plan }).is_ok())
    }
}

fn work(repo: &ThreadSafeRepository, jobs: &Mutex<Receiver<Job>>, done: &Sender<Done>, means: &Means<'_>) {
    let repo = repo.to_thread_local();
    loop {
        // Waiting with the lock held is meant: one worker waits for the next job, the others for their turn.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { place, plan }) = job else { return };
        let (bytes, key) = (plan.bytes(), plan.key());
        let reused = means.earlier.and_then(|earlier| earlier.take(&key));
        let result = reused.map_or_else(|| plan.build(&repo, means), Ok);
        if done.send(Done { place, bytes, key, result }).is_err() {
            return;
        }
    }
}

/// Hashes and writes fragments in their order.
struct Output<'a> {
    out: &'a mut dyn Write,
    limits: &'a Limits,
    tar: blake3::Hasher,
    sha256: ring::digest::Context,
    size: u64,
    blob: blake3::Hasher,
    blob_size: u64,
    fragments: FragmentIndex,
    reused_fragments: usize,
}

impl<'a> Output<'a> {
    fn new(out: &'a mut dyn Write, limits: &'a Limits) -> Self {
        Self {
            out,
            limits,
            tar: blake3::Hasher::new(),
            sha256: ring::digest::Context::new(&ring::digest::SHA256),
            size: 0,
            blob: blake3::Hasher::new(),
            blob_size: 0,
            fragments: FragmentIndex::default(),
            reused_fragments: 0,
        }
    }

    /// Writes what the workers finish until no more comes.
    fn write_all(
        &mut self,
        finished: &Receiver<Done>,
        admission: &Admission,
        interrupt: &AtomicBool,
    ) -> Result<(), TarballError> {
        let mut early = BTreeMap::new();
        let mut place = 0;
        for done in finished {
            early.insert(done.place, done);
            while let Some(Done { bytes, key, result, .. }) = early.remove(&place) {
                if interrupt.load(Ordering::Relaxed) {
                    return Err(TarballError::Interrupted);
                }
                self.write(key, &result?)?;
                admission.leave(bytes);
                place += 1;
            }
        }
        Ok(())
    }

    fn write(&mut self, key: FragmentKey, fragment: &Fragment) -> Result<(), TarballError> {
        let before = self.size;
        for part in &fragment.tar {
            self.tar.update(part);
            self.sha256.update(part);
            self.size += part.len() as u64;
        }
        if self.size > self.limits.max_tarball_bytes {
            return Err(TarballError::TooLarge { limit: self.limits.max_tarball_bytes });
        }
        self.blob.update(&fragment.frame);
        let (frame_bytes, tar_bytes) = (fragment.frame.len() as u64, self.size - before);
        self.blob_size += frame_bytes;
        self.fragments.rows.push(IndexRow { key, hash: fragment.frame_hash, frame_bytes, tar_bytes });
        self.reused_fragments += usize::from(fragment.reused);
        self.out.write_all(&fragment.frame).map_err(TarballError::Write)
    }

    fn finish(self, walked: Walked) -> Built {
        let sha256 = self.sha256.finish();
        let sha256 = sha256.as_ref().try_into().expect("SHA-256 has 32 bytes");
        Built {
            digest: self.tar.finalize().into(),
            sha256: Sha256::from_bytes(sha256),
            size: self.size,
            omitted: walked.omitted,
            entries: walked.entries,
            blob: self.blob.finalize().into(),
            blob_size: self.blob_size,
            fragments: self.fragments,
            reused_fragments: self.reused_fragments,
        }
    }
}
