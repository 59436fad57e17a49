//! The frames of HTTP/3 (RFC 9114 section 7), and QUIC's integers (RFC 9000 section 16).

/// The known frame and stream types.
pub mod kind {
    /// The bytes of a body.
    pub const DATA: u64 = 0x0;
    /// The field section of a request or a response.
    pub const HEADERS: u64 = 0x1;
    pub(crate) const CANCEL_PUSH: u64 = 0x3;
    pub(crate) const SETTINGS: u64 = 0x4;
    pub(crate) const PUSH_PROMISE: u64 = 0x5;
    pub(crate) const GOAWAY: u64 = 0x7;
    pub(crate) const MAX_PUSH_ID: u64 = 0xd;

    pub(crate) const CONTROL_STREAM: u64 = 0x0;
    pub(crate) const PUSH_STREAM: u64 = 0x1;
    pub(crate) const QPACK_ENCODER_STREAM: u64 = 0x2;
    pub(crate) const QPACK_DECODER_STREAM: u64 = 0x3;

    /// Frames of HTTP/2 that have no counterpart and must not be sent (RFC 9114 section 7.2.8).
    pub(crate) fn is_reserved(frame: u64) -> bool {
        matches!(frame, 0x2 | 0x6 | 0x8 | 0x9)
    }
}

/// The setting for the largest field section that the server reads.
pub(super) const MAX_FIELD_SECTION_SIZE: u64 = 0x6;

/// Reads an integer. Returns the value and its length in bytes; `None` if it is incomplete.
pub(super) fn read_integer(bytes: &[u8]) -> Option<(u64, usize)> {
    let &first = bytes.first()?;
    let length = 1usize << (first >> 6);
    let bytes = bytes.get(..length)?;
    let value = bytes[1..].iter().fold(u64::from(first & 0x3f), |value, &byte| value << 8 | u64::from(byte));
    Some((value, length))
}

/// Writes an integer below 2^62 in the fewest bytes.
pub(super) fn write_integer(value: u64, out: &mut Vec<u8>) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => {
            debug_assert!(value < 1 << 62, "QUIC's integers have 62 bits");
            out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes());
        }
    }
}

/// Reads the type and the length of a frame. Returns them and the bytes that they take; `None` if they are incomplete.
pub(super) fn read_head(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let (kind, first) = read_integer(bytes)?;
    let (length, second) = read_integer(&bytes[first..])?;
    Some((kind, length, first + second))
}

/// Writes the type and the length of a frame.
pub fn write_head(kind: u64, length: u64, out: &mut Vec<u8>) {
    write_integer(kind, out);
    write_integer(length, out);
}

/// Writes a frame whose length is known only after its payload was written. The length always takes four bytes.
pub fn write_frame(kind: u64, out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
    write_integer(kind, out);
    let begin = out.len() + 4;
    out.extend_from_slice(&[0; 4]);
    payload(out);
    let length = u32::try_from(out.len() - begin).ok().filter(|length| *length < 1 << 30);
    let length = length.expect("a frame that is written at once is small");
    out[begin - 4..begin].copy_from_slice(&(length | 0x8000_0000).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_rfc_9000() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(read_integer(bytes), Some((value, bytes.len())));
            assert_eq!(read_integer(&bytes[..bytes.len() - 1]), None);
            let mut written = Vec::new();
            write_integer(value, &mut written);
            assert_eq!(written, bytes);
        }
    }

    proptest! {
        #[test]
        fn heads_are_read_as_they_are_written(kind in 0u64..1 << 62, length in 0u64..1 << 62) {
            let mut bytes = Vec::new();
            write_head(kind, length, &mut bytes);
            prop_assert_eq!(read_head(&bytes), Some((kind, length, bytes.len())));
            for end in 0..bytes.len() {
                prop_assert_eq!(read_head(&bytes[..end]), None);
            }
        }

        #[test]
        fn frames_are_read_as_they_are_written(kind in 0u64..1 << 62, payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = Vec::new();
            write_frame(kind, &mut bytes, |out| out.extend_from_slice(&payload));
            let (read, length, head) = read_head(&bytes).unwrap();
            prop_assert_eq!((read, length), (kind, payload.len() as u64));
            prop_assert_eq!(&bytes[head..], payload);
        }
    }
}
