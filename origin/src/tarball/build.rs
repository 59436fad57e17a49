//! Makes a tarball: one thread walks, several decode and compress, one hashes the tar in order, and the caller's thread
//! writes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use gix::ThreadSafeRepository;
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::Omission;
use weir_shared::digest::{BlobDigest, Sha256, TarballDigest};

use super::admission::Admission;
use super::cut::{self, Cutter};
use super::digests::TarDigests;
use super::earlier::{Earlier, FragmentIndex, FragmentKey, IndexRow};
use super::folder;
use super::fragment::{Fragment, Plan, Tar, Tools, tar_bytes};
use super::sink::BlobSink;
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
    /// How many threads decode and compress (at least one does); one more walks, one hashes, and the calling thread writes.
    pub threads: usize,
    /// A blob to take fragments from. The bytes that are made do not depend on it.
    pub earlier: Option<&'a Earlier>,
    /// Where the LFS objects are that a selection asks for.
    pub lfs: Option<&'a LfsObjects>,
    /// Set it to stop the build.
    pub interrupt: &'a AtomicBool,
}

/// A plan with its place in the tarball.
struct Job {
    place: usize,
    plan: Plan,
    key: FragmentKey,
    /// The earlier tarball is the same up to where this fragment ends.
    same_so_far: bool,
}

/// What came of a job; the bytes are those that it was admitted with.
struct Done {
    place: usize,
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
    out: &mut dyn BlobSink,
) -> Result<Built, TarballError> {
    let Means { limits, threads, interrupt, .. } = *means;
    let threads = threads.max(1);
    let admission = Admission::new(threads + 2, (threads as u64 + 2) * cut::MAX_BYTES);
    let (jobs, next_job) = channel::<Job>();
    let next_job = Mutex::new(next_job);
    let (done, finished) = channel::<Done>();
    let (tars, next_tar) = channel::<(u64, Tar)>();
    std::thread::scope(|scope| {
        let admission = &admission;
        let walker = scope.spawn(move || {
            let mut planner = Planner::new(admission, jobs, means);
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
        let hasher = scope.spawn(move || {
            let _guard = CloseOnPanic(admission);
            hash(&next_tar, admission)
        });
        let _guard = CloseOnPanic(admission);
        let mut output = Output::new(out, limits, tars);
        let written = output.write_all(&finished, interrupt);
        let frames = output.finish();
        // Whoever still works on what nobody will write is sent away, but not before what was written is hashed.
        let digests = join(hasher);
        admission.close();
        drop(finished);
        // The walk's own failure is the reason; that the output ended early is its consequence.
        match (join(walker), written) {
            (Err(Stop::Failed(error)), _) | (_, Err(error)) => Err(error),
            (Err(Stop::Unwanted), Ok(())) => Err(TarballError::Interrupted),
            (Ok(walked), Ok(())) if walked.entries == 0 => Err(TarballError::Empty),
            (Ok(walked), Ok(())) => Ok(frames.into_built(walked, digests)),
        }
    })
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
    place: usize,
    bytes: u64,
    limits: &'a Limits,
    cutter: Cutter,
    plan: Plan,
    /// The earlier blob, as long as what was planned is what it begins with.
    same_as: Option<&'a Earlier>,
}

impl<'a> Planner<'a> {
    fn new(admission: &'a Admission, jobs: Sender<Job>, means: &Means<'a>) -> Self {
        let Means { limits, earlier, .. } = *means;
        let (cutter, plan) = (Cutter::default(), Plan::default());
        Self { admission, jobs, place: 0, bytes: 0, limits, cutter, plan, same_as: earlier }
    }

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
        let (place, key) = (self.place, plan.key());
        self.place += 1;
        self.same_as = self.same_as.filter(|earlier| earlier.has_at(place, &key));
        let job = Job { place, same_so_far: self.same_as.is_some(), key, plan };
        let wanted = self.admission.enter(job.plan.bytes());
        Ok(wanted && self.jobs.send(job).is_ok())
    }
}

fn work(repo: &ThreadSafeRepository, jobs: &Mutex<Receiver<Job>>, done: &Sender<Done>, means: &Means<'_>) {
    let repo = repo.to_thread_local();
    let mut tools = Tools::new();
    loop {
        // Waiting with the lock held is meant: one worker waits for the next job, the others for their turn.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { place, plan, key, same_so_far }) = job else { return };
        let bytes = plan.bytes();
        let reused = means.earlier.and_then(|earlier| earlier.take(&key, same_so_far, &mut tools.decompressor));
        let result = reused.map_or_else(|| plan.build(&repo, &mut tools.compressor, means), Ok);
        if done.send(Done { place, bytes, key, result }).is_err() {
            return;
        }
    }
}

/// Hashes the tar, fragment by fragment, and tells the digests after each.
fn hash(tars: &Receiver<(u64, Tar)>, admission: &Admission) -> Vec<TarDigests> {
    let mut after: Vec<TarDigests> = Vec::new();
    for (bytes, tar) in tars {
        let digests = match tar {
            Tar::Known(digests) => digests,
            Tar::Bytes(parts) => {
                let mut digests = after.last().cloned().unwrap_or_default();
                digests.update(&parts);
                digests
            }
        };
        after.push(digests);
        admission.leave(bytes);
    }
    after
}

/// Writes the frames of fragments in their order, and passes on their tar.
struct Output<'a> {
    out: &'a mut dyn BlobSink,
    limits: &'a Limits,
    tars: Sender<(u64, Tar)>,
    /// Bytes of tar.
    size: u64,
    blob_size: u64,
    frames: Vec<Frame>,
    reused: usize,
}

/// A fragment whose frame is written.
struct Frame {
    key: FragmentKey,
    hash: [u8; 32],
    bytes: u64,
    tar_bytes: u64,
}

impl<'a> Output<'a> {
    fn new(out: &'a mut dyn BlobSink, limits: &'a Limits, tars: Sender<(u64, Tar)>) -> Self {
        Self { out, limits, tars, size: 0, blob_size: 0, frames: Vec::new(), reused: 0 }
    }

    /// Writes what the workers finish until no more comes.
    fn write_all(&mut self, finished: &Receiver<Done>, interrupt: &AtomicBool) -> Result<(), TarballError> {
        let mut early = BTreeMap::new();
        let mut place = 0;
        for done in finished {
            early.insert(done.place, done);
            while let Some(Done { bytes, key, result, .. }) = early.remove(&place) {
                if interrupt.load(Ordering::Relaxed) {
                    return Err(TarballError::Interrupted);
                }
                self.write(bytes, key, result?)?;
                place += 1;
            }
        }
        Ok(())
    }

    fn write(&mut self, admitted: u64, key: FragmentKey, fragment: Fragment) -> Result<(), TarballError> {
        let Fragment { tar, tar_bytes, frame, frame_hash, earlier } = fragment;
        self.size += tar_bytes;
        if self.size > self.limits.max_tarball_bytes {
            return Err(TarballError::TooLarge { limit: self.limits.max_tarball_bytes });
        }
        // That nobody takes it means that the hasher has panicked, which is seen when it is joined.
        let _ = self.tars.send((admitted, tar));
        let bytes = frame.len() as u64;
        self.blob_size += bytes;
        self.frames.push(Frame { key, hash: frame_hash, bytes, tar_bytes });
        let kept = match earlier {
            None => self.out.append(&frame),
            Some(offset) => {
                self.reused += 1;
                self.out.append_earlier(&frame, offset)
            }
        };
        kept.map_err(TarballError::Write)
    }

    /// Ends the tar, too: no more of it comes.
    fn finish(self) -> Written {
        let Self { out, blob_size, frames, reused, .. } = self;
        Written { blob: out.end(), blob_size, frames, reused }
    }
}

/// A blob that is written.
struct Written {
    blob: BlobDigest,
    blob_size: u64,
    frames: Vec<Frame>,
    reused: usize,
}

impl Written {
    /// With what the walk told, and the tar's digests after each fragment.
    fn into_built(self, walked: Walked, digests: Vec<TarDigests>) -> Built {
        let whole = digests.last().cloned().unwrap_or_default();
        let size = whole.size();
        let (digest, sha256) = whole.finish();
        let rows = self.frames.into_iter().zip(digests).map(|(frame, digests)| {
            let Frame { key, hash, bytes, tar_bytes } = frame;
            IndexRow { key, hash, frame_bytes: bytes, tar_bytes, digests }
        });
        Built {
            digest,
            sha256,
            size,
            omitted: walked.omitted,
            entries: walked.entries,
            blob: self.blob,
            blob_size: self.blob_size,
            fragments: FragmentIndex { rows: rows.collect() },
            reused_fragments: self.reused,
        }
    }
}
