//! Puts finished runs in order: hashes the tar and lists its frames.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use weir_protocol::descriptor::Omission;
use weir_protocol::digest::{Sha256, TarballDigest};
use weir_protocol::manifest::Frame;

use super::TarballError;
use super::build_context::BuildContext;
use super::digests::TarDigests;
use super::memory_budget::MemoryBudget;
use super::recipe::{Recipe, RecipeRun, has_digests};
use super::walk::Walked;
use super::whole::Whole;

/// A tarball whose frames are in the sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// BLAKE3 of the tar.
    pub digest: TarballDigest,
    /// SHA-256 of the tar.
    pub sha256: Sha256,
    /// Uncompressed bytes.
    pub size: u64,
    /// Entries of the folder that the tarball leaves out.
    pub omitted: Vec<Omission>,
    /// Entries of the tar.
    pub entries: u64,
    /// The frames of the zstd representation, in order; at least one.
    pub zstd: Vec<Frame>,
    /// The frames of the gzip representation, of the same parts of the tar, if the selection includes it.
    pub gzip: Option<Vec<Frame>>,
    /// For later builds that use this one as their base.
    pub recipe: Recipe,
    /// Parts of the tar whose frames were taken from the base without decoding or compressing.
    pub reused_frames: usize,
    /// What the source has as a whole, if it is published too. A source adds it.
    pub whole: Option<Whole>,
}

/// What workers pass on.
pub(crate) enum Message {
    /// The next bytes of tar of a run that is too large to be in memory. It is the only one in progress.
    Part(Vec<u8>),
    Run(Box<ProcessedRun>),
}

/// A processed run, or its error.
pub(crate) struct ProcessedRun {
    pub position: usize,
    /// The bytes to return to the memory budget.
    pub admitted: Option<u64>,
    pub result: Result<FinishedRun, TarballError>,
}

/// A run whose frames are in the sink.
pub(crate) struct FinishedRun {
    pub run: RecipeRun,
    pub tar: Tar,
    pub reused: bool,
}

/// The input for the tar's digests.
pub(crate) enum Tar {
    /// The tar of the run, in parts.
    Bytes(Vec<Vec<u8>>),
    /// Nothing: it was passed on in parts.
    Passed,
    /// No bytes: this run or a later one carries the state of the digests after it.
    Skipped,
}

pub(crate) struct Assembler<'a> {
    context: &'a BuildContext<'a>,
    budget: &'a MemoryBudget,
    /// The budget of parts.
    parts: &'a MemoryBudget,
    /// Bytes of tar so far.
    size: u64,
    digests: TarDigests,
    recipe: Recipe,
    reused_frames: usize,
}

impl<'a> Assembler<'a> {
    pub(crate) fn new(context: &'a BuildContext<'a>, budget: &'a MemoryBudget, parts: &'a MemoryBudget) -> Self {
        let (digests, recipe) = (TarDigests::default(), Recipe::default());
        Self { context, budget, parts, size: 0, digests, recipe, reused_frames: 0 }
    }

    /// Takes runs in any order until the channel closes.
    pub(crate) fn take_all(&mut self, finished: &Receiver<Message>) -> Result<(), TarballError> {
        let mut early = BTreeMap::new();
        for message in finished {
            let done = match message {
                Message::Run(done) => *done,
                Message::Part(tar) => {
                    if self.context.interrupt.load(Ordering::Relaxed) {
                        return Err(TarballError::Interrupted);
                    }
                    let bytes = tar.len() as u64;
                    self.digests.update(&[tar]);
                    self.parts.leave(bytes);
                    continue;
                }
            };
            early.insert(done.position, done);
            while let Some(done) = early.remove(&self.recipe.runs.len()) {
                if self.context.interrupt.load(Ordering::Relaxed) {
                    return Err(TarballError::Interrupted);
                }
                self.take(done.result?)?;
                done.admitted.into_iter().for_each(|bytes| self.budget.leave(bytes));
            }
        }
        Ok(())
    }

    fn take(&mut self, finished: FinishedRun) -> Result<(), TarballError> {
        let FinishedRun { mut run, tar, reused } = finished;
        self.size += run.tar_size();
        let limit = self.context.limits.max_tarball_bytes;
        if self.size > limit {
            return Err(TarballError::TooLarge { limit });
        }
        match (tar, &run.digests) {
            (Tar::Bytes(parts), _) => self.digests.update(&parts),
            (Tar::Skipped, Some(digests)) => self.digests = digests.clone(),
            (Tar::Skipped, None) | (Tar::Passed, _) => {}
        }
        if has_digests(self.recipe.runs.len()) {
            run.digests = Some(self.digests.clone());
        }
        if reused {
            self.reused_frames += run.frames.len();
        }
        self.recipe.runs.push(run);
        Ok(())
    }

    /// Finishes the tarball. All runs must have been taken.
    pub(crate) fn into_built(self, walked: Walked) -> Built {
        let Self { size, digests, recipe, reused_frames, .. } = self;
        let (digest, sha256) = digests.finish();
        let Walked { entries, omitted } = walked;
        Built {
            digest,
            sha256,
            size,
            omitted,
            entries,
            zstd: recipe.zstd(),
            gzip: recipe.gzip(),
            recipe,
            reused_frames,
            whole: None,
        }
    }
}
