//! Recipes: the keys and frames of a tarball's runs, for later builds.
//!
//! A recipe is a private object. Its name is its checksum, so the parser does not look for damage. It checks bounds,
//! because buffers are allocated by the sizes of frames.

use serde::{Deserialize, Serialize};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::{Frame, MAX_FRAME_BYTES, MAX_FRAME_TAR_BYTES, MAX_OBJECT_BYTES};

use super::digests::TarDigests;

/// Determines a run's frames: equal keys mean equal frames.
pub(crate) type RunKey = [u8; 32];

/// The interval of stored digest states, each 1 to 2 KiB. A build reads at most this many unchanged runs before its
/// first change.
const STATE_INTERVAL_RUNS: usize = 16;

/// Whether the recipe has a digest state after the run at this position.
pub(crate) fn has_digests(position: usize) -> bool {
    position % STATE_INTERVAL_RUNS == STATE_INTERVAL_RUNS - 1
}

/// The first byte of a recipe. Change it with the fields.
const VERSION: u8 = 1;

/// The runs of a tarball, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recipe {
    pub(crate) runs: Vec<RecipeRun>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeRun {
    pub key: RunKey,
    /// At least one. The first run, and runs of more than [`MAX_FRAME_TAR_BYTES`], may have several.
    pub frames: Vec<RecipeFrame>,
    /// The digest state after this run, if [`has_digests`].
    pub digests: Option<TarDigests>,
}

/// One part of the tar in each encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeFrame {
    pub tar_size: u64,
    pub zstd: Coded,
    /// Set for every frame if the selection includes gzip.
    pub gzip: Option<Coded>,
}

/// The object of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coded {
    digest: [u8; 32],
    size: u64,
}

/// The bytes are not a valid recipe.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// Larger than the largest object, in bytes.
    #[error("the recipe has {0} bytes, more than the limit of {MAX_OBJECT_BYTES}")]
    TooLarge(usize),
    /// Another version of this program wrote the recipe.
    #[error("the recipe is not of version {VERSION}")]
    Version,
    /// The recipe is truncated, too long, or has an invalid field.
    #[error("the recipe cannot be read: {0}")]
    Malformed(#[from] postcard::Error),
    /// A run has no frames, a frame has an impossible size, or digest states are misplaced.
    #[error("run {0} of the recipe is invalid")]
    Run(usize),
}

impl Recipe {
    /// Parses a recipe.
    ///
    /// # Errors
    /// See [`RecipeError`]. A build can do without a recipe.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecipeError> {
        if bytes.len() > MAX_OBJECT_BYTES {
            return Err(RecipeError::TooLarge(bytes.len()));
        }
        let Some((&VERSION, fields)) = bytes.split_first() else { return Err(RecipeError::Version) };
        let (runs, rest) = postcard::take_from_bytes::<Vec<RecipeRun>>(fields)?;
        if !rest.is_empty() {
            return Err(postcard::Error::DeserializeBadEncoding.into());
        }
        match runs.iter().enumerate().position(|(position, run)| !run.is_possible_at(position)) {
            Some(position) => Err(RecipeError::Run(position)),
            None => Ok(Self { runs }),
        }
    }

    /// Serializes the recipe: about 140 bytes for each frame, 170 with gzip. Equal recipes have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_extend(&self.runs, vec![VERSION]).expect("runs are plain data, and memory does not end")
    }

    pub(crate) fn zstd(&self) -> Vec<Frame> {
        self.frames().map(|frame| frame.zstd.frame(frame.tar_size)).collect()
    }

    /// The frames of the gzip representation, if there is one.
    pub fn gzip(&self) -> Option<Vec<Frame>> {
        self.frames().map(|frame| Some(frame.gzip?.frame(frame.tar_size))).collect()
    }

    fn frames(&self) -> impl Iterator<Item = &RecipeFrame> {
        self.runs.iter().flat_map(|run| &run.frames)
    }
}

impl RecipeRun {
    fn is_possible_at(&self, position: usize) -> bool {
        !self.frames.is_empty()
            && self.frames.iter().all(RecipeFrame::is_possible)
            && self.digests.is_some() == has_digests(position)
    }

    pub fn tar_size(&self) -> u64 {
        self.frames.iter().map(|frame| frame.tar_size).sum()
    }
}

impl RecipeFrame {
    fn is_possible(&self) -> bool {
        let coded = |coded: &Coded| (1..=MAX_FRAME_BYTES).contains(&coded.size);
        (1..=MAX_FRAME_TAR_BYTES).contains(&self.tar_size) && coded(&self.zstd) && self.gzip.iter().all(coded)
    }
}

impl Coded {
    pub fn new(digest: &ObjectDigest, size: u64) -> Self {
        Self { digest: *digest.as_bytes(), size }
    }

    pub fn digest(&self) -> ObjectDigest {
        blake3::Hash::from_bytes(self.digest).into()
    }

    fn frame(&self, tar_size: u64) -> Frame {
        Frame { digest: self.digest(), size: self.size, tar_size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn coded() -> impl Strategy<Value = Coded> {
        (any::<[u8; 32]>(), 1..=MAX_FRAME_BYTES).prop_map(|(digest, size)| Coded { digest, size })
    }

    fn runs() -> impl Strategy<Value = Vec<RecipeRun>> {
        let frame = (1..=MAX_FRAME_TAR_BYTES, coded(), proptest::option::of(coded()))
            .prop_map(|(tar_size, zstd, gzip)| RecipeFrame { tar_size, zstd, gzip });
        let run = (any::<RunKey>(), proptest::collection::vec(frame, 1..4));
        proptest::collection::vec(run, 0..40).prop_map(|runs| {
            let mut digests = TarDigests::default();
            let run = |(position, (key, frames))| {
                digests.update(&[vec![position as u8; 700]]);
                RecipeRun { key, frames, digests: has_digests(position).then(|| digests.clone()) }
            };
            runs.into_iter().enumerate().map(run).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_recipe_is_read_as_it_was_written(runs in runs(), change: proptest::sample::Index) {
            let recipe = Recipe { runs };
            let bytes = recipe.to_bytes();
            prop_assert_eq!(&Recipe::parse(&bytes).unwrap(), &recipe);
            prop_assert!(Recipe::parse(&bytes[..bytes.len() - 1]).is_err(), "cut short");
            prop_assert!(Recipe::parse(&[&bytes[..], b"x"].concat()).is_err(), "too long");
            // A changed recipe that still parses must be valid.
            let mut changed = bytes.clone();
            changed[change.index(bytes.len())] ^= 0x81;
            if let Ok(other) = Recipe::parse(&changed) {
                prop_assert_eq!(Recipe::parse(&other.to_bytes()).unwrap(), other);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Recipe::parse(&[&[VERSION][..], &bytes].concat());
        }
    }

    #[test]
    fn runs_that_cannot_be_are_refused() {
        let coded = Coded { digest: [7; 32], size: 1 };
        let frame = RecipeFrame { tar_size: 512, zstd: coded, gzip: None };
        let run = |frames: &[RecipeFrame]| RecipeRun { key: [1; 32], frames: frames.to_vec(), digests: None };
        let too_many = vec![run(&[frame]); STATE_INTERVAL_RUNS];
        for (runs, index) in [
            (vec![run(&[frame]), run(&[])], 1),
            (vec![run(&[RecipeFrame { tar_size: 0, ..frame }])], 0),
            (vec![run(&[frame, RecipeFrame { tar_size: MAX_FRAME_TAR_BYTES + 1, ..frame }])], 0),
            (vec![run(&[RecipeFrame { zstd: Coded { size: MAX_FRAME_BYTES + 1, ..coded }, ..frame }])], 0),
            (vec![run(&[RecipeFrame { gzip: Some(Coded { size: 0, ..coded }), ..frame }])], 0),
            (vec![RecipeRun { digests: Some(TarDigests::default()), ..run(&[frame]) }], 0),
            (too_many, STATE_INTERVAL_RUNS - 1),
        ] {
            let error = Recipe::parse(&Recipe { runs }.to_bytes()).unwrap_err();
            assert!(matches!(error, RecipeError::Run(found) if found == index), "{error}");
        }
        assert!(matches!(Recipe::parse(&[]), Err(RecipeError::Version)));
        assert!(matches!(Recipe::parse(&[VERSION + 1, 0]), Err(RecipeError::Version)));
        assert!(matches!(Recipe::parse(&vec![0; MAX_OBJECT_BYTES + 1]), Err(RecipeError::TooLarge(_))));
    }
}
