//! The gzip form of a tarball, from its zstd form. The same tarball gives the same bytes.

use std::io::{self, BufReader, Read, Write};

use flate2::{Compression, GzBuilder};
use weir_shared::digest::{BlobDigest, TarballDigest};

const READ_BYTES: usize = 256 << 10;

/// zlib's own default.
const LEVEL: u32 = 6;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gzipped {
    /// Of the tarball inside.
    pub(crate) tarball: TarballDigest,
    /// Of the bytes that were written.
    pub(crate) blob: BlobDigest,
    /// How many those are.
    pub(crate) size: u64,
}

/// Decodes `zstd`, all its frames, and writes that to `out` as gzip, whose header has no time and no name.
pub(crate) fn from_zstd(zstd: impl Read, out: impl Write) -> io::Result<Gzipped> {
    let mut tarball = zstd::Decoder::new(BufReader::with_capacity(READ_BYTES, zstd))?;
    let hashed = Hashed { out, hasher: blake3::Hasher::new() };
    let mut gzip = GzBuilder::new().mtime(0).write(hashed, Compression::new(LEVEL));
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match tarball.read(&mut buffer)? {
            0 => break,
            read => {
                hasher.update(&buffer[..read]);
                gzip.write_all(&buffer[..read])?;
            }
        }
    }
    let blob = gzip.finish()?.hasher;
    Ok(Gzipped { tarball: hasher.finalize().into(), blob: blob.finalize().into(), size: blob.count() })
}

struct Hashed<W> {
    out: W,
    hasher: blake3::Hasher,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_frames_are_in_it_and_nothing_of_time_or_place() {
        let tar: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let (first, second) = tar.split_at(1_000_000);
        let zstd = [zstd::encode_all(first, 3).unwrap(), zstd::encode_all(second, 3).unwrap()].concat();
        let mut out = Vec::new();
        let gzipped = from_zstd(&zstd[..], &mut out).unwrap();
        assert_eq!(gzipped.tarball, TarballDigest::of(&tar));
        assert_eq!((gzipped.blob, gzipped.size), (BlobDigest::of(&out), out.len() as u64));
        assert_eq!(out[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
        let mut again = Vec::new();
        flate2::read::GzDecoder::new(&out[..]).read_to_end(&mut again).unwrap();
        assert_eq!(again, tar);
        assert!(from_zstd(&zstd[..zstd.len() - 1], io::sink()).is_err(), "a cut stream is no tarball");
    }
}
