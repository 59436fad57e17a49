//! Decodes, hashes and writes a body on a blocking thread.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc::Receiver;
use weir_protocol::digest::TarballDigest;

use super::FetchError;
use super::delta::{DeltaDecoder, Dictionary};

/// The buffer size in bytes.
const PART: usize = 256 << 10;

/// The largest window of a zstd frame: 8 MiB, as the protocol limits it.
const MAX_WINDOW_LOG: u32 = 23;

/// A content coding that the agent accepts.
pub(crate) enum Coding {
    Identity,
    /// One or several zstd frames.
    Zstd,
    /// A delta against this tar.
    Dcz(Dictionary),
}

/// Decodes a body into an unnamed file, which leaves nothing behind; returns it with its digest and size.
pub(super) fn write(
    parts: Receiver<Bytes>,
    coding: &Coding,
    incoming: &Path,
    max_bytes: u64,
) -> Result<(File, TarballDigest, u64), FetchError> {
    let mut file = tempfile::tempfile_in(incoming).map_err(FetchError::disk(incoming))?;
    let parts = BodyReader { parts, part: Bytes::new() };
    let (digest, size) = match coding {
        Coding::Identity => copy(parts, &mut file, incoming, max_bytes)?,
        Coding::Zstd => {
            let mut decoder =
                zstd::stream::read::Decoder::with_buffer(BufReader::new(parts)).map_err(FetchError::Decode)?;
            decoder.window_log_max(MAX_WINDOW_LOG).map_err(FetchError::Decode)?;
            copy(decoder, &mut file, incoming, max_bytes)?
        }
        Coding::Dcz(dictionary) => {
            let decoder = DeltaDecoder::new(parts, dictionary).map_err(FetchError::Decode)?;
            copy(decoder, &mut file, incoming, max_bytes)?
        }
    };
    Ok((file, digest, size))
}

pub(super) fn copy(
    mut from: impl Read,
    to: &mut File,
    directory: &Path,
    max_bytes: u64,
) -> Result<(TarballDigest, u64), FetchError> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; PART];
    let mut size = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok((hasher.finalize().into(), size)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(FetchError::Decode(error)),
        };
        size += read as u64;
        if size > max_bytes {
            return Err(FetchError::TooLarge(max_bytes));
        }
        hasher.update(&buffer[..read]);
        to.write_all(&buffer[..read]).map_err(FetchError::disk(directory))?;
    }
}

/// A reader of the parts of a body.
struct BodyReader {
    parts: Receiver<Bytes>,
    part: Bytes,
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.parts.blocking_recv() {
                Some(part) => self.part = part,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.part.len());
        self.part.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn write_all(parts: &[&[u8]], coding: &Coding, max_bytes: u64) -> Result<(TarballDigest, u64), FetchError> {
        let (sender, receiver) = mpsc::channel(parts.len().max(1));
        for part in parts {
            sender.try_send(Bytes::copy_from_slice(part)).unwrap();
        }
        drop(sender);
        let dir = tempfile::tempdir().unwrap();
        let (_, digest, size) = write(receiver, coding, dir.path(), max_bytes)?;
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
        Ok((digest, size))
    }

    #[test]
    fn all_frames_of_a_body_are_decoded_in_chunks_of_any_size() {
        let frames = [zstd::encode_all(&b"one"[..], 3).unwrap(), zstd::encode_all(&b"two"[..], 3).unwrap()].concat();
        for cut in 0..frames.len() {
            let (a, b) = frames.split_at(cut);
            let (digest, size) = write_all(&[a, b], &Coding::Zstd, 100).unwrap();
            assert_eq!((digest, size), (TarballDigest::of(b"onetwo"), 6));
            if cut > 0 && !a.is_empty() && a != zstd::encode_all(&b"one"[..], 3).unwrap() {
                assert!(matches!(write_all(&[a], &Coding::Zstd, 100), Err(FetchError::Decode(_))), "cut at {cut}");
            }
        }
        assert_eq!(write_all(&[b"on", b"", b"e"], &Coding::Identity, 3).unwrap().0, TarballDigest::of(b"one"));
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bomb = zstd::encode_all(io::repeat(0).take(64 << 20), 3).unwrap();
        assert!(bomb.len() < 10_000);
        assert!(matches!(write_all(&[&bomb], &Coding::Zstd, 1 << 20), Err(FetchError::TooLarge(_))));
        assert!(matches!(write_all(&[b"1234"], &Coding::Identity, 3), Err(FetchError::TooLarge(3))));
    }
}
