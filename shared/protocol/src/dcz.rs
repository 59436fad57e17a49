//! The content coding `dcz` (RFC 9842): one zstd frame, compressed with an older tarball as its dictionary, behind a
//! header that names the dictionary.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::digest::Sha256;

/// The name of the request header with which a client offers a dictionary.
pub const AVAILABLE_DICTIONARY: &str = "available-dictionary";

/// Bytes of the header of a body.
pub const HEADER_BYTES: usize = MAGIC.len() + 32;

/// A skippable zstd frame of 32 bytes, so that any zstd decoder passes over the header.
const MAGIC: [u8; 8] = [0x5e, 0x2a, 0x4d, 0x18, 0x20, 0, 0, 0];

/// The largest tar that deltas are made of, or against: both ends have the older one in memory. Larger tarballs are updated by
/// frames.
pub const MAX_TAR_BYTES: u64 = 8 << 20;

/// The window that every decoder supports.
const MIN_MAX_WINDOW: u64 = 8 << 20;

/// The largest window, whatever the dictionary.
const MAX_WINDOW: u64 = 128 << 20;

/// The header of a body: the magic number, then the SHA-256 of the dictionary.
pub fn header(dictionary: &Sha256) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..MAGIC.len()].copy_from_slice(&MAGIC);
    header[MAGIC.len()..].copy_from_slice(dictionary.as_bytes());
    header
}

/// The dictionary that a header names. `None`: it is no header of `dcz`.
pub fn dictionary_of(header: &[u8; HEADER_BYTES]) -> Option<Sha256> {
    let dictionary = header.strip_prefix(&MAGIC)?;
    Some(Sha256::from_bytes(dictionary.try_into().expect("the rest of the header")))
}

/// The largest window that a body may need, in bytes, for a dictionary of `size` bytes.
pub fn max_window(size: u64) -> u64 {
    size.saturating_add(size / 4).clamp(MIN_MAX_WINDOW, MAX_WINDOW)
}

/// The value of [`AVAILABLE_DICTIONARY`] for a dictionary: a byte sequence of RFC 9651.
pub fn available_dictionary(dictionary: &Sha256) -> String {
    format!(":{}:", STANDARD.encode(dictionary.as_bytes()))
}

/// The dictionary that a client offers. `None`: the value is malformed, and counts as absent.
pub fn parse_available_dictionary(value: &str) -> Option<Sha256> {
    let (bytes, parameters) = value.trim().strip_prefix(':')?.split_once(':')?;
    if !(parameters.is_empty() || parameters.starts_with(';')) {
        return None;
    }
    Some(Sha256::from_bytes(STANDARD.decode(bytes).ok()?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_is_that_of_the_rfc() {
        let dictionary = Sha256::of(b"old");
        let header = header(&dictionary);
        assert_eq!(header[..8], *b"\x5e\x2a\x4d\x18\x20\x00\x00\x00");
        assert_eq!(dictionary_of(&header), Some(dictionary));
        for at in 0..8 {
            let mut wrong = header;
            wrong[at] ^= 1;
            assert_eq!(dictionary_of(&wrong), None, "{at}");
        }
    }

    #[test]
    fn an_offered_dictionary_is_one_byte_sequence() {
        let offer = available_dictionary(&Sha256::of(b"old"));
        assert_eq!(offer.len(), 46);
        assert_eq!(parse_available_dictionary(&offer), Some(Sha256::of(b"old")));
        assert_eq!(parse_available_dictionary(&format!(" {offer};a=1")), Some(Sha256::of(b"old")));
        for wrong in ["", ":", "::", ":AAAA:", &offer[1..], &offer[..offer.len() - 1], &format!("{offer}, {offer}")] {
            assert_eq!(parse_available_dictionary(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_window_grows_with_the_dictionary_within_bounds() {
        for (size, window) in [(0, 8 << 20), (6 << 20, 8 << 20), (64 << 20, 80 << 20), (u64::MAX, 128 << 20)] {
            assert_eq!(max_window(size), window);
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(value in "\\PC{0,60}") {
            let _ = parse_available_dictionary(&value);
        }
    }
}
