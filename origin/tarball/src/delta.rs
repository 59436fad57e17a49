//! Deltas: the coding `dcz` of a tar against an older one.

use std::io::{self, Read, Write};

use weir_protocol::dcz;
use weir_protocol::digest::Sha256;
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder;

/// Most of a delta are matches of long distances, which cost as much at any level.
const LEVEL: i32 = 6;

/// Encodes a tar of `size` bytes as one zstd frame behind the header of the coding. `None`: the body would have more
/// than `max` bytes.
///
/// Memory: the window, at most [`dcz::max_window`] of the older tar, and the body.
///
/// # Errors
/// The tar cannot be read, or does not have `size` bytes.
pub fn encode(old: &[u8], old_sha256: &Sha256, mut new: impl Read, size: u64, max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut body = Bounded { bytes: Vec::new(), max, is_full: false };
    let encoded = body.write_all(&dcz::header(old_sha256)).and_then(|()| {
        let mut encoder = Encoder::with_ref_prefix(&mut body, LEVEL, old)?;
        encoder.set_parameter(CParameter::WindowLog(window_log(old.len() as u64, size)))?;
        encoder.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
        encoder.set_pledged_src_size(Some(size))?;
        io::copy(&mut new, &mut encoder)?;
        encoder.finish().map(drop)
    });
    match encoded {
        Ok(()) => Ok(Some(body.bytes)),
        Err(_) if body.is_full => Ok(None),
        Err(error) => Err(error),
    }
}

/// A window over the whole tar, so that all of it may refer to the dictionary, unless readers need not support it.
fn window_log(dictionary: u64, size: u64) -> u32 {
    /// The smallest of the library.
    const MIN: u64 = 1 << 10;
    let max = dcz::max_window(dictionary);
    // A frame whose size is known and within the window is decoded with a window of exactly its size.
    if size <= max { size.max(MIN).next_power_of_two().ilog2() } else { max.ilog2() }
}

/// Bytes up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    max: u64,
    is_full: bool,
}

impl Write for Bounded {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.is_full |= (self.bytes.len() + part.len()) as u64 > self.max;
        if self.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that do not compress.
    fn noise(seed: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn decode(body: &[u8], old: &[u8]) -> Vec<u8> {
        let mut decoder = zstd::stream::read::Decoder::with_ref_prefix(&body[dcz::HEADER_BYTES..], old).unwrap();
        decoder.window_log_max(dcz::max_window(old.len() as u64).next_power_of_two().ilog2()).unwrap();
        let mut tar = Vec::new();
        decoder.read_to_end(&mut tar).unwrap();
        tar
    }

    #[test]
    fn a_small_change_makes_a_small_delta() {
        let old = noise(1, 12 << 20);
        let mut new = old.clone();
        new.splice(5 << 20..(5 << 20) + 10, noise(2, 20_000));
        let sha256 = Sha256::of(&old);
        let body = encode(&old, &sha256, &new[..], new.len() as u64, 8 << 20).unwrap().unwrap();
        assert!(body.len() < 30_000, "{}", body.len());
        assert_eq!(dcz::dictionary_of(body[..dcz::HEADER_BYTES].try_into().unwrap()), Some(sha256));
        assert_eq!(decode(&body, &old), new);
        assert_eq!(
            zstd::zstd_safe::get_frame_content_size(&body[dcz::HEADER_BYTES..]).unwrap(),
            Some(new.len() as u64)
        );
        let same = encode(&old, &sha256, &new[..], new.len() as u64, 8 << 20).unwrap().unwrap();
        assert!(same == body, "equal tars give equal bytes");
    }

    #[test]
    fn what_is_larger_than_the_limit_is_not_made() {
        let (old, new) = (noise(1, 100_000), noise(2, 100_000));
        let encode = |max| encode(&old, &Sha256::of(&old), &new[..], 100_000, max).unwrap();
        assert_eq!(encode(100_000), None);
        assert_eq!(encode(39), None);
        assert_eq!(decode(&encode(101_000).unwrap(), &old), new);
    }

    #[test]
    fn a_tar_of_another_size_is_an_error() {
        let old = noise(1, 1000);
        for size in [999, 1001] {
            assert!(encode(&old, &Sha256::of(&old), &old[..], size, 8 << 20).is_err(), "{size}");
        }
    }

    #[test]
    fn the_window_covers_the_tar_where_readers_support_it() {
        assert_eq!(window_log(0, 0), 10);
        assert_eq!(window_log(1 << 20, 3 << 20), 22);
        assert_eq!(window_log(64 << 20, 66 << 20), 27, "the frame states 66 MiB, of 80 MiB that are allowed");
        assert_eq!(window_log(64 << 20, 100 << 20), 26);
        assert_eq!(window_log(1 << 20, 100 << 20), 23);
    }
}
