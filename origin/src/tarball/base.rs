//! A tarball that was built before, to take frames from.
//!
//! A run that both have is neither decoded from Git nor compressed again. As long as both tars are the same from the
//! beginning, the recipe has the state of their digests, too. After the first change the digests need the tar, so frames
//! are read and decompressed, which costs a tenth of making them. What cannot be read is built from Git.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use weir_protocol::digest::ObjectDigest;
use zstd::bulk::Decompressor;

use super::recipe::{Recipe, RecipeRun, RunKey};

type Read = dyn Fn(&ObjectDigest) -> io::Result<Bytes> + Send + Sync;

/// The recipe of an earlier build, and a way to read its frames.
///
/// Frames that stand before the first change are named again and not read. So whoever passes a base answers for it that
/// its frames are stored, and stay stored until the new tarball is published.
pub struct Base {
    recipe: Recipe,
    positions: HashMap<RunKey, usize>,
    read: Box<Read>,
}

impl Base {
    /// `read` returns the bytes of a public object, verified by its name. It may block, and several threads call it at
    /// once. Where it fails, the run is built.
    pub fn new(recipe: Recipe, read: impl Fn(&ObjectDigest) -> io::Result<Bytes> + Send + Sync + 'static) -> Self {
        let positions = recipe.runs.iter().enumerate().map(|(position, run)| (run.key, position)).collect();
        Self { recipe, positions, read: Box::new(read) }
    }

    /// The run at this position, if it has this key.
    pub(super) fn run_at(&self, position: usize, key: &RunKey) -> Option<&RecipeRun> {
        self.recipe.runs.get(position).filter(|run| run.key == *key)
    }

    /// The run of this key and its tar, wherever it is.
    pub(super) fn read(&self, key: &RunKey, decompressor: &mut Decompressor<'_>) -> Option<(&RecipeRun, Vec<Vec<u8>>)> {
        let run = self.recipe.runs.get(*self.positions.get(key)?)?;
        let tar = run.frames.iter().map(|frame| {
            // A recipe's sizes are bounded, so that they fit.
            let tar = decompressor.decompress(&(self.read)(&frame.zstd.digest())?, frame.tar_size as usize)?;
            if tar.len() as u64 == frame.tar_size { Ok(tar) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        });
        tar.collect::<io::Result<_>>()
            .inspect_err(|error| tracing::warn!(%error, "a frame of the base cannot be read; its run is built"))
            .ok()
            .map(|tar| (run, tar))
    }
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Base").field("recipe", &self.recipe).finish_non_exhaustive()
    }
}
