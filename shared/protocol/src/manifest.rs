//! A manifest: the frames of a representation that has more than one, in the order of the body.
//!
//! A frame is one zstd frame or gzip member of its own, so a body is its frames in a row, a range of it is a few frames, and
//! each is verified alone, by its name. What is written is exact: equal frames make equal manifests, byte for byte.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::digest::ObjectDigest;

/// The largest object, in bytes.
pub const MAX_OBJECT_BYTES: usize = 8 << 20;

/// The most bytes of tar that one frame holds. (A `dcz` body is one frame over the whole tar, and is never in a manifest.)
pub const MAX_FRAME_TAR_BYTES: u64 = 4 << 20;

/// The most bytes that one frame has: [`MAX_FRAME_TAR_BYTES`] that do not compress, and what the coding adds.
pub const MAX_FRAME_BYTES: u64 = MAX_FRAME_TAR_BYTES + (64 << 10);

/// One frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The name of its bytes.
    pub digest: ObjectDigest,
    /// Its bytes: 1 to [`MAX_FRAME_BYTES`].
    pub size: u64,
    /// The bytes of tar that it decodes to: 1 to [`MAX_FRAME_TAR_BYTES`].
    pub tar_size: u64,
}

/// The frames of a representation, at least two, with where each begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    frames: Vec<Frame>,
    size: u64,
    tar_size: u64,
}

/// The frames cannot be a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// More bytes than [`MAX_OBJECT_BYTES`].
    #[error("the manifest has {0} bytes, more than the limit of {MAX_OBJECT_BYTES}")]
    TooLarge(usize),
    /// Not JSON, or a field is missing or wrong.
    #[error("the manifest cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A frame has a size that it may not have.
    #[error("frame {index} of the manifest has {size} bytes for {tar_size} bytes of tar, which no frame has")]
    FrameSize {
        /// Which frame, from 0.
        index: usize,
        /// Its bytes.
        size: u64,
        /// Its bytes of tar.
        tar_size: u64,
    },
    /// One frame or none: the frame itself is named then.
    #[error("the manifest has {0} frames; it must have at least two")]
    TooFew(usize),
}

/// A part of a body that lies in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Which frame, from 0.
    pub index: usize,
    /// The first byte within the frame (or its tar).
    pub start: u64,
    /// Behind the last byte within the frame (or its tar).
    pub end: u64,
}

impl Manifest {
    /// A manifest of these frames.
    ///
    /// # Errors
    /// There are fewer than two, or one has a size that no frame has.
    pub fn new(frames: Vec<Frame>) -> Result<Self, ManifestError> {
        if frames.len() < 2 {
            return Err(ManifestError::TooFew(frames.len()));
        }
        let (mut total, mut tar_total) = (0, 0);
        for (index, &Frame { size, tar_size, .. }) in frames.iter().enumerate() {
            if !(1..=MAX_FRAME_BYTES).contains(&size) || !(1..=MAX_FRAME_TAR_BYTES).contains(&tar_size) {
                return Err(ManifestError::FrameSize { index, size, tar_size });
            }
            // No sum of frames that fit into one manifest comes near the end of 64 bits.
            total += size;
            tar_total += tar_size;
        }
        Ok(Self { frames, size: total, tar_size: tar_total })
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// It is too large, malformed, or its frames cannot be a manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MAX_OBJECT_BYTES {
            return Err(ManifestError::TooLarge(bytes.len()));
        }
        #[derive(Deserialize)]
        struct Fields {
            frames: Vec<Frame>,
        }
        Self::new(crate::json::from_slice::<Fields>(bytes)?.frames)
    }

    /// The bytes of the manifest: JSON without white space.
    ///
    /// # Errors
    /// It has too many frames for an object.
    pub fn to_bytes(&self) -> Result<Bytes, ManifestError> {
        #[derive(Serialize)]
        struct Fields<'a> {
            frames: &'a [Frame],
        }
        let bytes = serde_json::to_vec(&Fields { frames: &self.frames }).expect("frames are plain data");
        if bytes.len() > MAX_OBJECT_BYTES { Err(ManifestError::TooLarge(bytes.len())) } else { Ok(bytes.into()) }
    }

    /// The frames, in the order of the body.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Bytes of the body.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the tar.
    pub fn tar_size(&self) -> u64 {
        self.tar_size
    }

    /// The parts of the frames that a range of the body lies in, in their order.
    pub fn slices(&self, range: std::ops::Range<u64>) -> Vec<Slice> {
        slices(&self.frames, range, |frame| frame.size)
    }

    /// The same for a range of the tar.
    pub fn tar_slices(&self, range: std::ops::Range<u64>) -> Vec<Slice> {
        slices(&self.frames, range, |frame| frame.tar_size)
    }
}

fn slices(frames: &[Frame], range: std::ops::Range<u64>, size: impl Fn(&Frame) -> u64) -> Vec<Slice> {
    let (mut at, mut found) = (0, Vec::new());
    for (index, frame) in frames.iter().enumerate() {
        let (begin, end) = (at, at + size(frame));
        at = end;
        if begin >= range.end {
            break;
        }
        if end > range.start {
            found.push(Slice { index, start: range.start.max(begin) - begin, end: range.end.min(end) - begin });
        }
    }
    found
}

/// For the fuzzers: what is read is written back and read the same.
#[cfg(fuzzing)]
pub fn fuzz_manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::parse(bytes) {
        let written = manifest.to_bytes().expect("what was read fits");
        assert_eq!(Manifest::parse(&written).expect("what was written is read"), manifest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(number: u64, size: u64, tar_size: u64) -> Frame {
        Frame { digest: ObjectDigest::of(&number.to_le_bytes()), size, tar_size }
    }

    #[test]
    fn a_manifest_has_exactly_these_bytes() {
        let manifest = Manifest::new(vec![frame(0, 351_000, 1 << 20), frame(1, 7, 1536)]).unwrap();
        let [one, other] = [0u64, 1].map(|number| ObjectDigest::of(&number.to_le_bytes()));
        let expected = format!(
            r#"{{"frames":[{{"digest":"{one}","size":351000,"tar_size":1048576}},{{"digest":"{other}","size":7,"tar_size":1536}}]}}"#
        );
        assert_eq!(manifest.to_bytes().unwrap(), expected.as_bytes());
        assert_eq!(Manifest::parse(expected.as_bytes()).unwrap(), manifest);
        assert_eq!((manifest.size(), manifest.tar_size()), (351_007, (1 << 20) + 1536));
    }

    #[test]
    fn what_cannot_be_a_manifest_is_refused_in_plain_words() {
        for (frames, expected) in [
            (vec![], "0 frames"),
            (vec![frame(0, 1, 1)], "1 frames"),
            (vec![frame(0, 1, 1), frame(1, 0, 1)], "frame 1"),
            (vec![frame(0, 1, 0), frame(1, 1, 1)], "frame 0"),
            (vec![frame(0, 1, 1), frame(1, 1, MAX_FRAME_TAR_BYTES + 1)], "frame 1"),
            (vec![frame(0, 1, 1), frame(1, MAX_FRAME_BYTES + 1, 1)], "frame 1"),
        ] {
            let error = Manifest::new(frames).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(matches!(Manifest::parse(b"{}"), Err(ManifestError::Malformed(_))));
        assert!(matches!(Manifest::parse(&vec![b' '; MAX_OBJECT_BYTES + 1]), Err(ManifestError::TooLarge(_))));
    }

    proptest! {
        #[test]
        fn slices_are_the_range_and_nothing_else(
            sizes in proptest::collection::vec(1u64..50, 2..12), a in 0u64..600, b in 0u64..600,
        ) {
            let frames = sizes.iter().enumerate().map(|(number, size)| frame(number as u64, *size, 1)).collect();
            let manifest = Manifest::new(frames).unwrap();
            let (start, end) = (a.min(b).min(manifest.size()), a.max(b).min(manifest.size()));
            let begins: Vec<u64> = sizes.iter().scan(0, |at, size| { let begin = *at; *at += size; Some(begin) }).collect();
            let bytes: Vec<u64> = manifest
                .slices(start..end)
                .iter()
                .flat_map(|slice| begins[slice.index] + slice.start..begins[slice.index] + slice.end)
                .collect();
            prop_assert_eq!(bytes, (start..end).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Manifest::parse(&bytes);
        }
    }
}
