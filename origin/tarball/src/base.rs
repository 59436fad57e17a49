//! The base of a build: an earlier tarball whose frames can be reused.
//!
//! A run that both tarballs have is neither decoded from Git nor compressed again. As long as both tars are equal
//! from the start, the recipe also has the state of their digests. After the first change the digests need the tar,
//! so frames are read and decompressed, which costs a tenth of building them. Unreadable frames are built.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use weir_protocol::digest::ObjectDigest;
use zstd::bulk::Decompressor;

use super::recipe::{Recipe, RecipeFrame, RecipeRun, RunKey};

type Read = dyn Fn(&ObjectDigest) -> io::Result<Bytes> + Send + Sync;

/// The recipe of an earlier build, and a function that reads its frames.
///
/// Frames before the first change are referenced again without being read. The caller must ensure that they are
/// stored, and stay stored until the new tarball is published.
pub struct Base {
    recipe: Recipe,
    positions: HashMap<RunKey, usize>,
    read: Box<Read>,
}

impl Base {
    /// `read` returns the bytes of a public object after verifying its digest. It may block, and several threads call
    /// it at once. If it fails, the run is built.
    pub fn new(recipe: Recipe, read: impl Fn(&ObjectDigest) -> io::Result<Bytes> + Send + Sync + 'static) -> Self {
        let positions = recipe.runs.iter().enumerate().map(|(position, run)| (run.key, position)).collect();
        Self { recipe, positions, read: Box::new(read) }
    }

    /// The run at this position if it has this key.
    pub fn run_at(&self, position: usize, key: &RunKey) -> Option<&RecipeRun> {
        self.recipe.runs.get(position).filter(|run| run.key == *key)
    }

    /// The run with this key, at any position. Its tar is passed on in parts, until `take` returns false.
    pub fn read(
        &self,
        key: &RunKey,
        decompressor: &mut Decompressor<'_>,
        take: &mut dyn FnMut(Vec<u8>) -> bool,
    ) -> Option<&RecipeRun> {
        let run = self.recipe.runs.get(*self.positions.get(key)?)?;
        let mut read = |frame: &RecipeFrame| {
            // Recipes are parsed with bounded sizes, so the cast is safe.
            let tar = decompressor.decompress(&(self.read)(&frame.zstd.digest())?, frame.tar_size as usize)?;
            if tar.len() as u64 == frame.tar_size { Ok(tar) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        };
        for frame in &run.frames {
            let tar = read(frame).inspect_err(
                |error: &io::Error| tracing::warn!(%error, "a frame of the base cannot be read; the build makes it again"),
            );
            if !take(tar.ok()?) {
                return None;
            }
        }
        Some(run)
    }
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Base").field("recipe", &self.recipe).finish_non_exhaustive()
    }
}
