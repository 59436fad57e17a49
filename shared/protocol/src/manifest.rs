//! Manifests: the frames of a representation that has more than one, in the order of the body.
//!
//! A frame is a complete zstd frame or gzip member, so a body is the concatenation of its frames, a range is a few of
//! them, and each is verified by its digest. The encoding is canonical: equal frames make equal bytes.

use std::io;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use zstd::bulk::Decompressor;

use crate::digest::ObjectDigest;

/// The largest object, in bytes.
pub const MAX_OBJECT_BYTES: usize = 8 << 20;

/// The most bytes of tar per frame. (A `dcz` body is one frame of any size, without a manifest.)
pub const MAX_FRAME_TAR_BYTES: u64 = 4 << 20;

/// The largest frame in bytes: [`MAX_FRAME_TAR_BYTES`] of incompressible data, with the overhead of the coding.
pub const MAX_FRAME_BYTES: u64 = MAX_FRAME_TAR_BYTES + (64 << 10);

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The digest of its bytes.
    pub digest: ObjectDigest,
    /// Its size in bytes: 1 to [`MAX_FRAME_BYTES`].
    pub size: u64,
    /// Its decoded size in bytes of tar: 1 to [`MAX_FRAME_TAR_BYTES`].
    pub tar_size: u64,
}

impl Frame {
    /// Decodes the bytes of a zstd frame, which must give exactly `tar_size` bytes of tar.
    ///
    /// # Errors
    /// They are no frame, or one of another size.
    pub fn decode(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let expected = usize::try_from(self.tar_size).map_err(io::Error::other)?;
        // The output buffer is the window: decoding allocates no more, whatever the frame header says.
        let tar = Decompressor::new()?.decompress(bytes, expected)?;
        if tar.len() != expected {
            let reason = format!("a frame decodes to {} bytes of tar, expected {expected}", tar.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(tar)
    }
}

/// The frames of a representation, at least two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    frames: Vec<Frame>,
    size: u64,
    tar_size: u64,
}

/// The bytes or frames are not a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// More than [`MAX_OBJECT_BYTES`].
    #[error("the manifest has {0} bytes, more than the limit of {MAX_OBJECT_BYTES}")]
    TooLarge(usize),
    /// Not JSON, or a field is missing or wrong.
    #[error("the manifest cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The size of a frame is out of range.
    #[error("frame {index} of the manifest has {size} bytes for {tar_size} bytes of tar, which no frame has")]
    FrameSize {
        /// The index of the frame.
        index: usize,
        /// The size in bytes.
        size: u64,
        /// The decoded size in bytes.
        tar_size: u64,
    },
    /// Fewer than two frames: the descriptor names a single frame directly.
    #[error("the manifest has {0} frames; it must have at least two")]
    TooFew(usize),
}

/// A range of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// The index of the frame.
    pub index: usize,
    /// The first byte within the frame, or within its tar.
    pub start: u64,
    /// The end (exclusive) within the frame, or within its tar.
    pub end: u64,
}

impl Manifest {
    /// Builds a manifest.
    ///
    /// # Errors
    /// There are fewer than two frames, or a size is out of range.
    pub fn new(frames: Vec<Frame>) -> Result<Self, ManifestError> {
        if frames.len() < 2 {
            return Err(ManifestError::TooFew(frames.len()));
        }
        let (mut total, mut tar_total) = (0, 0);
        for (index, &Frame { size, tar_size, .. }) in frames.iter().enumerate() {
            if !(1..=MAX_FRAME_BYTES).contains(&size) || !(1..=MAX_FRAME_TAR_BYTES).contains(&tar_size) {
                return Err(ManifestError::FrameSize { index, size, tar_size });
            }
            // The sums cannot overflow: a manifest holds too few frames.
            total += size;
            tar_total += tar_size;
        }
        Ok(Self { frames, size: total, tar_size: tar_total })
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// The bytes are too many or malformed, or the frames are not a manifest.
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

    /// Encodes the manifest: JSON without white space.
    ///
    /// # Errors
    /// It is larger than [`MAX_OBJECT_BYTES`].
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

    /// The size of the body in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The size of the tar in bytes.
    pub fn tar_size(&self) -> u64 {
        self.tar_size
    }

    /// The slices of frames that cover a range of the body, in order.
    pub fn slices(&self, range: std::ops::Range<u64>) -> Vec<Slice> {
        slices(&self.frames, range, |frame| frame.size)
    }

    /// The slices of frames that cover a range of the tar, in order.
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

/// For fuzzing: a parsed manifest survives encoding.
#[cfg(feature = "fuzzing")]
pub fn fuzz_manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::parse(bytes) {
        let written = manifest.to_bytes().expect("a parsed manifest fits");
        assert_eq!(Manifest::parse(&written).expect("an encoded manifest parses"), manifest);
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
    fn invalid_manifests_have_clear_errors() {
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
        fn slices_cover_exactly_the_range(
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
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Manifest::parse(&bytes);
        }
    }
}
