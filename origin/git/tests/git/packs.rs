//! Packs made by hand.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use gix::odb::pack::data::entry::Header;

/// The size of a large object, in bytes.
pub(crate) const SIZE: usize = 1 << 20;

pub(crate) fn pack_header(objects: u32) -> Vec<u8> {
    [&b"PACK\0\0\0\x02"[..], &objects.to_be_bytes()].concat()
}

pub(crate) fn with_checksum(mut pack: Vec<u8>) -> Vec<u8> {
    pack.extend(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &pack).as_ref());
    pack
}

pub(crate) fn name(blob: &[u8]) -> gix::ObjectId {
    gix::objs::compute_hash(gix::hash::Kind::Sha1, gix::objs::Kind::Blob, blob).unwrap()
}

/// A size in the header of a delta.
pub(crate) fn number(number: usize) -> [u8; 3] {
    [number as u8 | 0x80, (number >> 7) as u8 | 0x80, (number >> 14) as u8]
}

pub(crate) fn entry(header: Header, contents: &[u8]) -> Vec<u8> {
    let mut entry = Vec::new();
    header.write_to(contents.len() as u64, &mut entry).unwrap();
    let mut zlib = ZlibEncoder::new(entry, Compression::best());
    zlib.write_all(contents).unwrap();
    zlib.finish().unwrap()
}

/// A pack of a chain of deltas, each as large as the largest object, with the first object.
pub(crate) fn line_of_large_deltas(count: u8) -> (Vec<u8>, gix::ObjectId) {
    let (object, copies) = (vec![0; 1 << 10], SIZE / 8);
    let (mut pack, mut base, mut length) = (pack_header(1 + u32::from(count)), 12, object.len());
    pack.extend(entry(Header::Blob, &object));
    for level in 0..count {
        let at = pack.len();
        // One byte from the start, in the longest encoding.
        let copy = [0xff, 0, 0, 0, 0, 1, 0, 0];
        let delta = [&number(length)[..], &number(copies + 1), &copy.repeat(copies), &[1, level]].concat();
        pack.extend(entry(Header::OfsDelta { base_distance: (at - base) as u64 }, &delta));
        (base, length) = (at, copies + 1);
    }
    (with_checksum(pack), name(&object))
}
