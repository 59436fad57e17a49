//! Puts runs in their order: hashes the tar, and lists its frames.

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

/// A tarball whose frames the sink has.
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
    /// The frames of the zstd representation, in their order; at least one.
    pub zstd: Vec<Frame>,
    /// The frames of the gzip representation, if the selection asks for it: of the same parts of the tar.
    pub gzip: Option<Vec<Frame>>,
    /// How it was made, for the builds that come after.
    pub recipe: Recipe,
    /// How many parts of the tar were neither decoded nor compressed, but their frames taken from the base.
    pub reused_frames: usize,
}

/// What came of a run.
pub(super) struct Done {
    pub(super) position: usize,
    /// The bytes that the memory budget admitted for it.
    pub(super) admitted: Option<u64>,
    pub(super) result: Result<Finished, TarballError>,
}

/// A run whose frames the sink has.
pub(super) struct Finished {
    pub(super) run: RecipeRun,
    pub(super) tar: Tar,
    pub(super) reused: bool,
}

/// What the tar's digests go on with.
pub(super) enum Tar {
    /// The bytes of the run, in parts.
    Bytes(Vec<Vec<u8>>),
    /// Nothing: the run, or one soon after it, has the state of the digests behind it.
    Known,
}

/// Collects the runs of a tarball.
pub(super) struct Assembler<'a> {
    context: &'a BuildContext<'a>,
    budget: &'a MemoryBudget,
    /// Of the tar so far.
    size: u64,
    digests: TarDigests,
    recipe: Recipe,
    reused_frames: usize,
}

impl<'a> Assembler<'a> {
    pub(super) fn new(context: &'a BuildContext<'a>, budget: &'a MemoryBudget) -> Self {
        let (digests, recipe) = (TarDigests::default(), Recipe::default());
        Self { context, budget, size: 0, digests, recipe, reused_frames: 0 }
    }

    /// Takes runs, in whatever order they come, until no more come.
    pub(super) fn take_all(&mut self, finished: &Receiver<Done>) -> Result<(), TarballError> {
        let mut early = BTreeMap::new();
        for done in finished {
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

    fn take(&mut self, finished: Finished) -> Result<(), TarballError> {
        let Finished { mut run, tar, reused } = finished;
        self.size += run.tar_size();
        let limit = self.context.limits.max_tarball_bytes;
        if self.size > limit {
            return Err(TarballError::TooLarge { limit });
        }
        match (tar, &run.digests) {
            (Tar::Bytes(parts), _) => self.digests.update(&parts),
            (Tar::Known, Some(digests)) => self.digests = digests.clone(),
            (Tar::Known, None) => {}
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

    /// With what the walk found. All runs were taken.
    pub(super) fn into_built(self, walked: Walked) -> Built {
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
        }
    }
}
