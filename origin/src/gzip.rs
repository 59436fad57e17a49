//! The gzip form of a tarball, from its zstd form; and back, when the zstd form is lost and Git cannot bring it back. The
//! same tarball gives the same bytes.

use std::io::{self, BufReader, Read, Write};

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use weir_shared::digest::{BlobDigest, TarballDigest};

const READ_BYTES: usize = 256 << 10;

/// zlib's own default.
const LEVEL: u32 = 6;

/// Of the zstd form that is made from a gzip form: what builds use.
const ZSTD_LEVEL: i32 = 3;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recoded {
    /// Of the tarball inside.
    pub(crate) tarball: TarballDigest,
    /// Of the bytes that were written.
    pub(crate) blob: BlobDigest,
    /// How many those are.
    pub(crate) size: u64,
}

/// Decodes `zstd`, all its frames, and writes that to `out` as gzip, whose header has no time and no name.
pub(crate) fn from_zstd(zstd: impl Read, out: impl Write) -> io::Result<Recoded> {
    let tarball = zstd::Decoder::new(BufReader::with_capacity(READ_BYTES, zstd))?;
    let mut gzip = GzBuilder::new().mtime(0).write(Hashed::new(out), Compression::new(LEVEL));
    let digest = copy(tarball, &mut gzip)?;
    Ok(gzip.finish()?.recoded(digest))
}

/// Decodes `gzip`, as [`from_zstd`] wrote it, and writes that to `out` as one frame of zstd.
pub(crate) fn to_zstd(gzip: impl Read, out: impl Write) -> io::Result<Recoded> {
    let tarball = GzDecoder::new(BufReader::with_capacity(READ_BYTES, gzip));
    let mut zstd = zstd::Encoder::new(Hashed::new(out), ZSTD_LEVEL)?;
    let digest = copy(tarball, &mut zstd)?;
    Ok(zstd.finish()?.recoded(digest))
}

fn copy(mut tarball: impl Read, out: &mut impl Write) -> io::Result<TarballDigest> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match tarball.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().into()),
            read => {
                hasher.update(&buffer[..read]);
                out.write_all(&buffer[..read])?;
            }
        }
    }
}

struct Hashed<W> {
    out: W,
    hasher: blake3::Hasher,
}

impl<W> Hashed<W> {
    fn new(out: W) -> Self {
        Self { out, hasher: blake3::Hasher::new() }
    }

    fn recoded(self, tarball: TarballDigest) -> Recoded {
        Recoded { tarball, blob: self.hasher.finalize().into(), size: self.hasher.count() }
    }
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
        let mut back = Vec::new();
        let recoded = to_zstd(&out[..], &mut back).unwrap();
        assert_eq!((recoded.tarball, recoded.blob), (TarballDigest::of(&tar), BlobDigest::of(&back)));
        assert_eq!(zstd::decode_all(&back[..]).unwrap(), tar);
        assert!(to_zstd(&out[..out.len() - 1], io::sink()).is_err(), "neither is this one");
    }
}
