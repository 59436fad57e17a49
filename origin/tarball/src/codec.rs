//! The encodings of a frame: one zstd frame, and one gzip member if requested. Equal tars give equal bytes.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::{Compression, GzBuilder};
use weir_protocol::manifest::MAX_FRAME_BYTES;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::compress_bound;

/// Identifies the encoder and the splitting rules. It is part of the content key and of every run's key. Change it
/// with the code, and when a golden test shows that a library's output has changed.
pub(crate) const CODEC: &str = "first 0.25 MiB, runs by paths and sizes v4, larger ones by FastCDC 2020 (0.25, 1, 4 MiB), \
    zstd level 3, gzip level 6 of zlib-rs";

/// The window is at most 2 MiB; readers must support 8 MiB.
const ZSTD_LEVEL: i32 = 3;

/// The default of zlib.
const GZIP_LEVEL: u32 = 6;

/// Compresses and decompresses frames. Reuse it: its tables take some megabytes.
pub(crate) struct Codec {
    compressor: Compressor<'static>,
    pub decompressor: Decompressor<'static>,
    buffer: Vec<u8>,
}

impl Codec {
    pub(crate) fn new() -> Self {
        let compressor = Compressor::new(ZSTD_LEVEL).expect("the level is one of the library's");
        let buffer = Vec::with_capacity(compress_bound(MAX_FRAME_BYTES as usize));
        Self { compressor, decompressor: Decompressor::default(), buffer }
    }

    /// One zstd frame with its content size and without a checksum.
    pub(crate) fn zstd(&mut self, tar: &[u8]) -> io::Result<Bytes> {
        self.compressor.compress_to_buffer(tar, &mut self.buffer)?;
        Ok(Bytes::copy_from_slice(&self.buffer))
    }

    /// One gzip member whose header has no time and no name.
    pub(crate) fn gzip(&mut self, tar: &[u8]) -> io::Result<Bytes> {
        self.buffer.clear();
        let mut member = GzBuilder::new().mtime(0).write(&mut self.buffer, Compression::new(GZIP_LEVEL));
        member.write_all(tar)?;
        member.finish()?;
        Ok(Bytes::copy_from_slice(&self.buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    use weir_protocol::digest::ObjectDigest;

    fn tar() -> Vec<u8> {
        (0..1_000_000_u64).map(|at| b"etaoin shrdlu\n"[(at * at / 7 % 14) as usize]).collect()
    }

    #[test]
    fn a_zstd_frame_states_its_size_and_needs_no_large_window() {
        let frame = Codec::new().zstd(&tar()).unwrap();
        assert_eq!(zstd::zstd_safe::get_frame_content_size(&frame).unwrap(), Some(1_000_000));
        assert_eq!(frame[4] & 0b0000_0100, 0, "it has no checksum");
        let mut decoder = zstd::Decoder::new(&frame[..]).unwrap();
        decoder.window_log_max(23).unwrap();
        let mut decoded = Vec::new();
        decoder.read_to_end(&mut decoded).unwrap();
        assert_eq!(decoded, tar());
    }

    /// The version of zstd is part of every run's key; zlib-rs does not report its version. If this fails after an
    /// update, change [`CODEC`] and the digest.
    #[test]
    fn a_gzip_member_has_these_bytes_for_ever() {
        let mut codec = Codec::new();
        let member = codec.gzip(&tar()).unwrap();
        assert_eq!(member[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255], "no time, no name");
        assert_eq!(ObjectDigest::of(&member).hex(), "fc9bd46eef526a27f68640a513895c2d0d1aa56818920fe5c7a05f2aae8b7a59");
        assert_eq!(codec.gzip(&tar()).unwrap(), member);
        let mut decoded = Vec::new();
        flate2::read::GzDecoder::new(&member[..]).read_to_end(&mut decoded).unwrap();
        assert_eq!(decoded, tar());
    }

    #[test]
    fn incompressible_data_fits_into_a_frame() {
        let mut noise = vec![0; 4 << 20];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let mut codec = Codec::new();
        for frame in [codec.zstd(&noise).unwrap(), codec.gzip(&noise).unwrap()] {
            assert!(frame.len() as u64 <= MAX_FRAME_BYTES, "{}", frame.len());
        }
    }
}
