//! QPACK (RFC 9204) without its dynamic table: the server uses none and allows the client none, so every field section is
//! self-contained.

mod huffman;
mod instructions;
mod static_table;

pub(super) use instructions::{DecoderStream, EncoderStream};

use http::HeaderMap;
use static_table::{STATIC_TABLE, name_index, status_index};

/// A field section cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum QpackError {
    /// It is incomplete, an integer is too large, a string is not valid Huffman code, or an index does not exist.
    #[error("the field section is malformed")]
    Malformed,
    /// It refers to a dynamic table, which is not allowed.
    #[error("the field section refers to a dynamic table")]
    Dynamic,
    /// It exceeds the limit (RFC 9114 section 4.2.2).
    #[error("the field section is too large")]
    TooLarge,
}

/// What each field adds to the size of a section besides its name and value (RFC 9114 section 4.2.2).
const FIELD_OVERHEAD: usize = 32;

/// Encodes the section of a response: the status, then its fields.
pub fn encode(status: u16, fields: &HeaderMap, out: &mut Vec<u8>) {
    write_prefix(status, out);
    for (name, value) in fields {
        write_field(name.as_str(), value.as_bytes(), out);
    }
}

/// Writes the prefix of a section, which refers to no dynamic table, and the status.
fn write_prefix(status: u16, out: &mut Vec<u8>) {
    // Required Insert Count 0, Base 0.
    out.extend_from_slice(&[0, 0]);
    match status_index(status) {
        Some(index) => write_integer(0b1100_0000, 6, index, out),
        None => {
            write_integer(0b0101_0000, 4, 24, out);
            write_string(0, 7, status.to_string().as_bytes(), out);
        }
    }
}

/// Writes a field line.
fn write_field(name: &str, value: &[u8], out: &mut Vec<u8>) {
    match name_index(name) {
        Some(index) => write_integer(0b0101_0000, 4, index, out),
        None => write_string(0b0010_0000, 3, name.as_bytes(), out),
    }
    write_string(0, 7, value, out);
}

/// Decodes a section of up to `limit` bytes, counted as in RFC 9114, and calls `field` for each field.
///
/// # Errors
/// The section cannot be decoded. The fields until then must not be used.
pub(super) fn decode(section: &[u8], limit: usize, mut field: impl FnMut(&[u8], &[u8])) -> Result<(), QpackError> {
    let mut rest = section;
    let (_, required_insert_count) = read_integer(&mut rest, 8)?;
    if required_insert_count != 0 {
        return Err(QpackError::Dynamic);
    }
    // With nothing to count back from, a negative base is invalid (RFC 9204 section 4.5.1.2).
    let (is_negative, _) = read_integer(&mut rest, 7)?;
    if is_negative != 0 {
        return Err(QpackError::Malformed);
    }
    let mut size = 0usize;
    let mut take = |name: &[u8], value: &[u8]| {
        size = size.saturating_add(name.len() + value.len() + FIELD_OVERHEAD);
        if size > limit {
            return Err(QpackError::TooLarge);
        }
        field(name, value);
        Ok(())
    };
    while let Some(&first) = rest.first() {
        if first & 0b1000_0000 != 0 {
            // Indexed field line.
            let (flags, index) = read_integer(&mut rest, 6)?;
            let (name, value) = static_entry(flags & 0b01 != 0, index)?;
            take(name.as_bytes(), value.as_bytes())?;
        } else if first & 0b0100_0000 != 0 {
            // Literal field line with name reference.
            let (flags, index) = read_integer(&mut rest, 4)?;
            let (name, _) = static_entry(flags & 0b0001 != 0, index)?;
            let value = read_string(&mut rest, 7, limit)?;
            take(name.as_bytes(), &value)?;
        } else if first & 0b0010_0000 != 0 {
            // Literal field line with literal name.
            let name = read_string(&mut rest, 3, limit)?;
            let value = read_string(&mut rest, 7, limit)?;
            take(&name, &value)?;
        } else {
            // Indexed, or literal, with a post-base index: there is no dynamic table.
            return Err(QpackError::Dynamic);
        }
    }
    Ok(())
}

fn static_entry(is_static: bool, index: u64) -> Result<(&'static str, &'static str), QpackError> {
    if !is_static {
        return Err(QpackError::Dynamic);
    }
    let index = usize::try_from(index).map_err(|_| QpackError::Malformed)?;
    STATIC_TABLE.get(index).copied().ok_or(QpackError::Malformed)
}

/// Writes an integer after the flags in its first byte (RFC 7541 section 5.1).
fn write_integer(flags: u8, prefix_bits: u32, value: u64, out: &mut Vec<u8>) {
    let most = (1u64 << prefix_bits) - 1;
    if value < most {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Reads an integer, and the flags before it.
fn read_integer(rest: &mut &[u8], prefix_bits: u32) -> Result<(u8, u64), QpackError> {
    let (&first, mut tail) = rest.split_first().ok_or(QpackError::Malformed)?;
    let most = (1u64 << prefix_bits) - 1;
    let flags = if prefix_bits == 8 { 0 } else { first >> prefix_bits };
    let mut value = u64::from(first) & most;
    if value == most {
        for shift in (0..).step_by(7) {
            let (&byte, after) = tail.split_first().ok_or(QpackError::Malformed)?;
            tail = after;
            // No valid value exceeds 2^32: lengths are limited and the table has 99 entries.
            if shift > 28 {
                return Err(QpackError::Malformed);
            }
            value += u64::from(byte & 127) << shift;
            if byte & 128 == 0 {
                break;
            }
        }
    }
    *rest = tail;
    Ok((flags, value))
}

/// Writes a string after the flags in its first byte (RFC 9204 section 4.1.2).
///
/// Without Huffman coding: it would make the headers of a poll a quarter smaller, which saves one packet in eight, and cost
/// four times as much as copying.
fn write_string(flags: u8, length_bits: u32, text: &[u8], out: &mut Vec<u8>) {
    write_integer(flags, length_bits, text.len() as u64, out);
    out.extend_from_slice(text);
}

fn read_string<'a>(
    rest: &mut &'a [u8],
    length_bits: u32,
    limit: usize,
) -> Result<std::borrow::Cow<'a, [u8]>, QpackError> {
    let (flags, length) = read_integer(rest, length_bits)?;
    let length = usize::try_from(length).map_err(|_| QpackError::Malformed)?;
    if length > limit {
        return Err(QpackError::TooLarge);
    }
    let (text, tail) = rest.split_at_checked(length).ok_or(QpackError::Malformed)?;
    *rest = tail;
    if flags & 1 == 0 { Ok(text.into()) } else { huffman::decode(text).map(Into::into).ok_or(QpackError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Field = (Vec<u8>, Vec<u8>);

    fn decoded(section: &[u8], limit: usize) -> Result<Vec<Field>, QpackError> {
        let mut fields = Vec::new();
        decode(section, limit, |name, value| fields.push((name.to_vec(), value.to_vec())))?;
        Ok(fields)
    }

    #[test]
    fn the_first_example_of_rfc_9204() {
        // Appendix B.1: a literal field line with a name reference.
        let section = b"\x00\x00\x51\x0b/index.html";
        assert_eq!(decoded(section, 1000), Ok(vec![(b":path".to_vec(), b"/index.html".to_vec())]));
    }

    #[test]
    fn dynamic_references_and_incomplete_sections_are_refused() {
        for (section, error) in [
            (&b""[..], QpackError::Malformed),
            (b"\x00", QpackError::Malformed),
            (b"\x01\x00", QpackError::Dynamic),
            (b"\x00\x80\xd1", QpackError::Malformed),
            (b"\x00\x00\x80", QpackError::Dynamic),
            (b"\x00\x00\x40\x00", QpackError::Dynamic),
            (b"\x00\x00\x10", QpackError::Dynamic),
            (b"\x00\x00\xff\x24", QpackError::Malformed),
            (b"\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff", QpackError::Malformed),
            (b"\x00\x00\x51\x0b/index", QpackError::Malformed),
            (b"\x00\x00\x51\x81\xff", QpackError::Malformed),
        ] {
            assert_eq!(decoded(section, 1000), Err(error), "{section:?}");
        }
        // Index 98, the last.
        assert_eq!(decoded(b"\x00\x00\xff\x23", 1000).unwrap()[0].1, b"sameorigin");
    }

    #[test]
    fn a_section_may_be_as_large_as_the_limit() {
        let section = b"\x00\x00\x51\x0b/index.html";
        let size = ":path/index.html".len() + 32;
        assert!(decoded(section, size).is_ok());
        assert_eq!(decoded(section, size - 1), Err(QpackError::TooLarge));
    }

    proptest! {
        #[test]
        fn a_response_is_read_as_it_was_written(
            status in 100u16..600,
            fields in proptest::collection::vec(("[a-z-]{1,20}|etag|vary|age", proptest::collection::vec(any::<u8>(), 0..300)), 0..20),
        ) {
            let mut section = Vec::new();
            write_prefix(status, &mut section);
            for (name, value) in &fields {
                write_field(name, value, &mut section);
            }
            let mut expected = vec![(b":status".to_vec(), status.to_string().into_bytes())];
            expected.extend(fields.into_iter().map(|(name, value)| (name.into_bytes(), value)));
            prop_assert_eq!(decoded(&section, 1 << 20), Ok(expected));
        }

        #[test]
        fn no_section_panics(section in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decoded(&section, 1000);
        }
    }
}
