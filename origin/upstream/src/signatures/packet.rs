//! OpenPGP signatures as packets (RFC 9580, sections 4.2 and 6). Pure.
//!
//! gpgv processes whatever packets it gets: it unpacks compressed ones, a few KB of which keep it busy for minutes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The first and the last line of an armored signature.
pub(super) const BEGIN: &str = "-----BEGIN PGP SIGNATURE-----";
const END: &str = "-----END PGP SIGNATURE-----";

/// The type of a signature packet.
const SIGNATURE: u8 = 2;

const MALFORMED: &str = "its PGP signature is malformed";

/// The one packet of a signature, which may be armored.
///
/// # Errors
/// It is something else than one signature.
pub(super) fn signature_packet(signature: &[u8]) -> Result<Vec<u8>, &'static str> {
    let packet = match signature.strip_prefix(BEGIN.as_bytes()) {
        Some(armored) => std::str::from_utf8(armored).ok().and_then(|text| decode_armor(text.lines().skip(1))),
        None => Some(signature.to_vec()),
    };
    let packet = packet.ok_or(MALFORMED)?;
    match length(&packet) {
        Some(length) if length == packet.len() as u64 => Ok(packet),
        Some(length) if length < packet.len() as u64 => Err("it has more than one signature"),
        _ => Err(MALFORMED),
    }
}

/// The bytes of the signature packet at the start, with its header. `None`: there is another one, or its length is not stated.
fn length(bytes: &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    let number = |range: std::ops::Range<usize>| {
        Some(rest.get(range)?.iter().fold(0_u64, |number, byte| (number << 8) | u64::from(*byte)))
    };
    let (kind, header, body) = match first >> 6 {
        0b11 => {
            let (header, body) = match number(0..1)? {
                short @ 0..=191 => (1, short),
                192..=223 => (2, number(0..2)? - (192 << 8) + 192),
                255 => (5, number(1..5)?),
                _ => return None,
            };
            (first & 0x3f, header, body)
        }
        0b10 => {
            let header = [1, 2, 4].get(usize::from(first & 3)).copied()?;
            (first >> 2 & 0xf, header, number(0..header)?)
        }
        _ => return None,
    };
    (kind == SIGNATURE).then_some(1 + header as u64 + body)
}

/// The bytes of an armored signature, from the lines after the first one. What is below it is not signed, and does not count.
pub(super) fn decode_armor<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Vec<u8>> {
    let lines = lines.map(|line| line.trim_end_matches([' ', '\t', '\r']));
    let body = lines.skip_while(|line| line.contains(':')).take_while(|line| *line != END);
    // A line with `=` at its start is the checksum.
    STANDARD.decode(body.filter(|line| !line.starts_with('=')).collect::<String>()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_one_signature_of_a_stated_length_is_accepted() {
        let long = |header: &[u8], body: usize| [header, &vec![7; body]].concat();
        for packet in [
            long(&[0x88, 3], 3),
            long(&[0x89, 1, 0], 256),
            long(&[0x8a, 0, 1, 0, 0], 1 << 16),
            long(&[0xc2, 191], 191),
            long(&[0xc2, 192, 0], 192),
            long(&[0xc2, 223, 255], 8383),
            long(&[0xc2, 255, 0, 1, 0, 0], 1 << 16),
        ] {
            assert_eq!(signature_packet(&packet).as_ref(), Ok(&packet));
            let armored = format!("{BEGIN}\nVersion: 1\n\n{}\n=abcd\n{END}\n", STANDARD.encode(&packet));
            assert_eq!(signature_packet(armored.as_bytes()).as_ref(), Ok(&packet));
            assert_eq!(signature_packet(&packet[..packet.len() - 1]), Err(MALFORMED));
            // Compressed data, literal data and a marker.
            for other in [&[0xa0, 1, 0][..], &[0xa3, 1, 0], &[0xc8, 1, 0], &[0xcb, 1, 0], &[0xca, 1, 0]] {
                assert_eq!(signature_packet(&[other, &packet].concat()), Err(MALFORMED));
                assert_eq!(signature_packet(&[&packet, other].concat()), Err("it has more than one signature"));
            }
        }
        // Of no stated length, in parts, and none.
        for packet in [&[0x8b, 1, 7][..], &[0xc2, 224, 7, 1, 7], b"hello", b"", b"\x88", b"\xc2\xff"] {
            assert_eq!(signature_packet(packet), Err(MALFORMED));
        }
        assert_eq!(signature_packet(format!("{BEGIN}\n\n!\n{END}").as_bytes()), Err(MALFORMED));
    }

    proptest! {
        #[test]
        fn no_signature_is_too_odd(bytes: Vec<u8>) {
            let _ = signature_packet(&bytes);
        }
    }
}
