//! Deltas: the coding `dcz` of a tar against an older one.

use std::io::{self, Read};

use weir_protocol::dcz::{self, MAX_TAR_BYTES};
use weir_protocol::digest::Sha256;
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder;

/// Most of a delta are matches of long distances, which cost as much at any level.
const LEVEL: i32 = 6;

/// A window over the whole tar, so that all of it may refer to the dictionary: 8 MiB. A frame of a smaller tar states its size as
/// the window.
const WINDOW_LOG: u32 = MAX_TAR_BYTES.ilog2();

/// Encodes a tar of `size` bytes as one zstd frame behind the header of the coding. Memory: the window and the body.
///
/// # Errors
/// The tar cannot be read, or does not have `size` bytes.
pub fn encode(old: &[u8], old_sha256: &Sha256, mut new: impl Read, size: u64) -> io::Result<Vec<u8>> {
    let mut encoder = Encoder::with_ref_prefix(dcz::header(old_sha256).to_vec(), LEVEL, old)?;
    encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
    encoder.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
    encoder.set_pledged_src_size(Some(size))?;
    io::copy(&mut new, &mut encoder)?;
    encoder.finish()
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
        let old = noise(1, 6 << 20);
        let mut new = old.clone();
        new.splice(5 << 20..(5 << 20) + 10, noise(2, 20_000));
        let sha256 = Sha256::of(&old);
        let body = encode(&old, &sha256, &new[..], new.len() as u64).unwrap();
        assert!(body.len() < 30_000, "{}", body.len());
        assert_eq!(dcz::dictionary_of(body[..dcz::HEADER_BYTES].try_into().unwrap()), Some(sha256));
        assert_eq!(decode(&body, &old), new);
        assert_eq!(
            zstd::zstd_safe::get_frame_content_size(&body[dcz::HEADER_BYTES..]).unwrap(),
            Some(new.len() as u64)
        );
        let same = encode(&old, &sha256, &new[..], new.len() as u64).unwrap();
        assert!(same == body, "equal tars give equal bytes");
    }

    #[test]
    fn a_tar_of_another_size_is_an_error() {
        let old = noise(1, 1000);
        for size in [999, 1001] {
            assert!(encode(&old, &Sha256::of(&old), &old[..], size).is_err(), "{size}");
        }
    }
}
