//! Decompresses an archive, and counts its bytes on both sides.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::bufread::GzDecoder;

use super::bounds::{Bounds, MAX_ZSTD_WINDOW_LOG};
use super::error::ArchiveError;
use super::members::only_zeros;

/// The first bytes of RFC 1952 and RFC 8878.
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// What follows the first byte (`0x50` to `0x5f`) of a frame that is skipped. zstd files of several threads begin with one.
const SKIPPABLE: &[u8] = &[0x2a, 0x4d, 0x18];

/// The first bytes of other formats, and what a message says of them.
const OTHERS: [(&[u8], &str); 4] = [
    (b"BZh", ", but compressed with bzip2"),
    (b"\xfd7zXZ\0", ", but compressed with xz"),
    (b"\x04\x22\x4d\x18", ", but compressed with lz4"),
    (b"PK\x03\x04", ", but a zip file"),
];

/// Fails beyond a bound, and after an interrupt.
pub(super) struct Bounded<'a, R> {
    inner: R,
    left: u64,
    beyond: Box<dyn Fn() -> ArchiveError + 'a>,
    stop: &'a AtomicBool,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ArchiveError::Interrupted.into());
        }
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| (self.beyond)())?;
        Ok(read)
    }
}

/// Decompresses all members of a gzip file. Zeros may fill it up, as on tapes.
struct Gzip<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(mut rest) = self.0.take().map(GzDecoder::into_inner) else { break };
            match rest.fill_buf()?.first() {
                Some(0) => only_zeros(rest, "the gzip file")?,
                Some(_) => self.0 = Some(GzDecoder::new(rest)),
                None => {}
            }
        }
        Ok(0)
    }
}

/// The file of an archive on the disk.
struct OnDisk<R>(R);

impl<R: Read> Read for OnDisk<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| ArchiveError::Disk(error).into())
    }
}

/// The bytes of a downloaded archive, within its bound.
pub(super) fn archive<'a, R: Read + 'a>(from: R, bounds: &'a Bounds, stop: &'a AtomicBool) -> impl Read + 'a {
    let beyond = || ArchiveError::TooLarge { key: bounds.max_archive_key, limit: bounds.max_archive };
    Bounded { inner: OnDisk(from), left: bounds.max_archive, beyond: Box::new(beyond), stop }
}

/// What an archive has, and what a message says of its format if that is no tar.
type Decompressed<'a> = (Bounded<'a, Box<dyn Read + 'a>>, &'static str);

/// The bytes without the compression that the first bytes name, within their bound.
pub(super) fn decompressed<'a, R: Read + 'a>(
    archive: R,
    bounds: &'a Bounds,
    stop: &'a AtomicBool,
) -> Result<Decompressed<'a>, ArchiveError> {
    let mut archive = BufReader::with_capacity(64 << 10, archive);
    // A short read at the start: no upstream chooses how a file on the disk is read.
    let start = archive.fill_buf()?;
    let found = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)).map_or("", |(_, found)| *found);
    let inner: Box<dyn Read + 'a> = if start.starts_with(GZIP) {
        Box::new(Gzip(Some(GzDecoder::new(archive))))
    } else if start.starts_with(ZSTD)
        || matches!(start, [0x50..=0x5f, skippable @ ..] if skippable.starts_with(SKIPPABLE))
    {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(archive)?;
        decoder.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
        Box::new(decoder)
    } else {
        Box::new(archive)
    };
    let beyond = || ArchiveError::UnpacksTooLarge(bounds.max_unpacked);
    Ok((Bounded { inner, left: bounds.max_unpacked, beyond: Box::new(beyond), stop }, found))
}
