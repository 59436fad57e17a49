//! One entry of a pack: what it is told against, and how large its head says that it and its object are.

use flate2::{Decompress, FlushDecompress};
use gix::odb::pack::data::Entry;
use gix::odb::pack::data::entry::Header;

use super::delta_bases::Base;

/// A number at the head of a delta.
const LONGEST_NUMBER: usize = 10;

/// The head of a delta: the size of what it is told against, and that of the object.
const LONGEST_DELTA_HEAD: usize = 2 * LONGEST_NUMBER;

/// What an entry is told against, if it is a delta whose base can be where it says.
pub(super) fn base(header: &Header, offset: u64) -> Option<Base> {
    match header {
        Header::RefDelta { base_id } => Some(Base::Named(*base_id)),
        Header::OfsDelta { base_distance } => Header::verified_base_pack_offset(offset, *base_distance).map(Base::At),
        _ => None,
    }
}

/// How many bytes it takes to read an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Of the object that it stands for.
    pub(super) object: u64,
    /// Of the delta, if it is one.
    pub(super) delta: u64,
}

/// The sizes of an entry; nothing if its head makes no sense.
pub(super) fn sizes(bytes: &[u8], hash: gix::hash::Kind, inflate: &mut Decompress) -> Option<Sizes> {
    // Where it is does not matter to its size.
    let entry = Entry::from_bytes(bytes, 0, hash).ok()?;
    if !entry.header.is_delta() {
        return Some(Sizes { object: entry.decompressed_size, delta: 0 });
    }
    let mut head = [0; LONGEST_DELTA_HEAD];
    inflate.reset(true);
    // It breaks off where the head is full, and so does one that is broken behind it.
    let _ = inflate.decompress(bytes.get(entry.header_size()..)?, &mut head, FlushDecompress::None);
    let (_base, rest) = number(head.get(..usize::try_from(inflate.total_out()).ok()?)?)?;
    Some(Sizes { object: number(rest)?.0, delta: entry.decompressed_size })
}

/// A number in groups of seven bits, the lowest first, and what comes after it. It is read just as gix reads it: ten digits
/// at the most, and what goes beyond 64 bits falls off.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0)? + 1;
    if length > LONGEST_NUMBER {
        return None;
    }
    let (digits, rest) = bytes.split_at(length);
    let number = digits.iter().zip((0_u32..).step_by(7));
    Some((number.fold(0, |number, (digit, shift)| number | u64::from(digit & 0x7f) << shift), rest))
}

/// Whatever an entry is, its size is read without a fault, and each plain object has one.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    for hash in [gix::hash::Kind::Sha1, gix::hash::Kind::Sha256] {
        let Ok(entry) = Entry::from_bytes(bytes, 0, hash) else { continue };
        let found = base(&entry.header, 1 << 40);
        assert!(found.is_none() || entry.header.is_delta());
        let sizes = sizes(bytes, hash, &mut Decompress::new(true));
        assert!(entry.header.is_delta() || sizes.is_some_and(|sizes| sizes.object == entry.decompressed_size));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use proptest::prelude::*;

    use super::*;

    fn digits(mut number: u64) -> Vec<u8> {
        let mut digits = Vec::new();
        while number > 127 {
            digits.push(number as u8 | 0x80);
            number >>= 7;
        }
        digits.push(number as u8);
        digits
    }

    fn entry(header: Header, contents: &[u8]) -> Vec<u8> {
        let mut entry = Vec::new();
        header.write_to(contents.len() as u64, &mut entry).unwrap();
        let mut zlib = ZlibEncoder::new(entry, Compression::fast());
        zlib.write_all(contents).unwrap();
        zlib.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Option<u64> {
        let sizes = sizes(bytes, gix::hash::Kind::Sha1, &mut Decompress::new(true))?;
        let is_delta = Entry::from_bytes(bytes, 0, gix::hash::Kind::Sha1).unwrap().header.is_delta();
        assert_eq!(sizes.delta > 0, is_delta);
        Some(sizes.object)
    }

    #[test]
    fn what_makes_no_sense_has_no_size() {
        assert_eq!(read(&entry(Header::Blob, b"four")), Some(4));
        let delta = Header::OfsDelta { base_distance: 300 };
        for wrong in [&b""[..], &[5], &[5, 0x80], &[0xff; 30], &[&[0xff; 10][..], &[0, 0]].concat()] {
            assert_eq!(read(&entry(delta, wrong)), None, "{wrong:?}");
        }
        assert_eq!(read(&entry(delta, &[5, 6])[..3]), None);
        assert!(base(&Header::OfsDelta { base_distance: 300 }, 200).is_none());
        assert!(matches!(base(&Header::OfsDelta { base_distance: 300 }, 500), Some(Base::At(200))));
    }

    /// Otherwise a size could be written so that gix reads it, and nobody here.
    #[test]
    fn a_number_is_as_large_as_gix_says() {
        let delta = Header::OfsDelta { base_distance: 300 };
        let five = [&[0x85][..], &[0x80; 8], &[2]].concat();
        assert_eq!(read(&entry(delta, &[&five[..], &five].concat())), Some(5));
        assert_eq!(read(&entry(delta, &[&[5][..], &[0xff; 9], &[0x7f]].concat())), Some(u64::MAX));
    }

    proptest! {
        #[test]
        fn a_size_is_read_as_it_is_written(base: u64, object: u64, rest in prop::collection::vec(any::<u8>(), 0..90)) {
            let contents = [digits(base), digits(object), rest].concat();
            let name = gix::ObjectId::null(gix::hash::Kind::Sha1);
            for header in [Header::OfsDelta { base_distance: 77 }, Header::RefDelta { base_id: name }] {
                prop_assert_eq!(read(&entry(header, &contents)), Some(object));
            }
        }
    }
}
