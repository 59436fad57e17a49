//! Indexes a pack while it comes, by gix in this process: that takes a third less than the git program. What rests on objects
//! that are not in the pack, or would take much memory, is left to that.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use gix::ObjectId;
use gix::error::{ErrorExt, message};
use gix::odb::pack;
use gix::odb::pack::data::EntryRange;
use gix::odb::pack::data::entry::Header;
use gix::odb::pack::data::input::{BytesToEntriesIter, EntryDataMode, Mode};
use gix::progress::{Count, NestedProgress, Progress};

use super::limits::{DELTA_CHAIN_FACTOR, ENTRY_OVERHEAD, OBJECTS_IN_MEMORY};
use super::progress::RECEIVED_OBJECTS;
use super::upstream_session::UpstreamSession;
use super::{FetchProgress, MirrorError, Upstream, memory_estimate};

/// What is taken of a pack at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// A pack as it comes.
pub(super) struct PackReader<'a> {
    pub(super) pack: &'a mut dyn BufRead,
    pub(super) session: &'a UpstreamSession<'a>,
    pub(super) progress: &'a FetchProgress,
    /// What came is written there as well.
    pub(super) copy: Option<&'a File>,
    /// How many bytes came since the last entry: gix keeps them, and there may be no end to one.
    pub(super) since_entry: &'a Cell<u64>,
    /// Nothing is asked for after the end: what comes then is no pack, or never comes.
    pub(super) has_ended: bool,
}

impl Read for PackReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.has_ended {
            return Ok(0);
        }
        let session = self.session;
        // Some bytes that are here already are much to do.
        session.check_interrupt().map_err(|error| session.record(error))?;
        let read = self.pack.read(into)?;
        self.has_ended = read == 0 && !into.is_empty();
        self.progress.received(read);
        if let Some(mut copy) = self.copy {
            copy.write_all(&into[..read]).map_err(|error| session.record(MirrorError::local("be written")(error)))?;
            let limit = session.upstream.max_object;
            if self.since_entry.get() > limit.saturating_add(limit / 64 + ENTRY_OVERHEAD) {
                return Err(session.record(MirrorError::ObjectTooLarge { limit }));
            }
            self.since_entry.set(self.since_entry.get() + read as u64);
        }
        Ok(read)
    }
}

/// Writes the index of a pack that is copied to a file. Returns its name; none if it is one for the git program. `expect` is
/// told how many objects come, before they do.
pub(super) fn index(
    reader: &mut PackReader,
    copy: &Path,
    index: &mut dyn Write,
    hash: gix::hash::Kind,
    reserve: &dyn Fn(usize) -> Result<(), MirrorError>,
) -> gix::Result<Option<ObjectId>> {
    let (session, since_entry) = (reader.session, reader.since_entry);
    let Upstream { max_object, max_objects: limit, .. } = *session.upstream;
    let mut progress = reader.progress.root();
    let mut shown = progress.add_child_with_id("objects", RECEIVED_OBJECTS);
    let pack = BufReader::with_capacity(BUFFER_BYTES, reader);
    let entries = BytesToEntriesIter::new_from_header(pack, Mode::Verify, EntryDataMode::Crc32, hash)?;
    let (version, objects) = (entries.version(), entries.size_hint().0);
    if objects > limit {
        return Err(session.record(MirrorError::TooManyObjects { objects, limit }).raise());
    }
    reserve(objects).map_err(|error| session.record(error).raise())?;
    if objects == 0 {
        return Ok(None);
    }
    shown.init(Some(objects), None);
    let (offsets, end, for_git) = (RefCell::new(Vec::new()), Cell::new(0), Cell::new(false));
    // Without a word on how many come: gix would set all of their places aside at once, and take that for one object.
    let mut reading = Some(entries);
    let mut entries = std::iter::from_fn(|| {
        since_entry.set(0);
        let Some(entry) = reading.as_mut()?.next() else {
            // It has a buffer as large as the largest entry.
            reading = None;
            return None;
        };
        shown.inc();
        Some(entry.and_then(|entry| {
            let (header, size) = (entry.header, entry.decompressed_size);
            memory_estimate::check_entry(header, size, max_object).map_err(|error| session.record(error).raise())?;
            // Of a size in more bytes than it takes gix would compute the checksum wrongly.
            let is_padded = usize::from(entry.header_size) != header.size(size);
            if is_padded || matches!(header, Header::RefDelta { .. }) {
                for_git.set(true);
                return Err(message("it is one for the git program").raise());
            }
            offsets.borrow_mut().push(entry.pack_offset);
            end.set(entry.pack_offset + u64::from(entry.header_size) + entry.compressed_size);
            Ok(entry)
        }))
    });
    let resolver = || {
        let pack = pack::data::File::at(copy, hash).map_err(io::Error::other)?;
        let estimate =
            memory_estimate::check_pack(&pack, &offsets.borrow(), |_| None, session).map_err(io::Error::other)?;
        let needed = estimate.map_err(|error| session.record(error))?.bytes();
        // What follows a pack is not a part of it.
        let has_more = pack.pack_end() as u64 != end.get();
        for_git.set(has_more || needed > max_object.saturating_mul(OBJECTS_IN_MEMORY));
        if for_git.get() { Err(io::Error::other("it takes much memory")) } else { Ok((entry_bytes, pack)) }
    };
    let indexed = pack::index::write_data_iter_to_stream(
        pack::index::Version::default(),
        resolver,
        &mut entries,
        Some(1),
        &mut progress,
        index,
        session.interrupt(),
        hash,
        usize::try_from(max_object.saturating_mul(DELTA_CHAIN_FACTOR)).ok(),
        version,
    );
    if for_git.get() { Ok(None) } else { Ok(Some(indexed?.data_hash)) }
}

fn entry_bytes(range: EntryRange, pack: &pack::data::File) -> Option<&[u8]> {
    pack.entry_slice(range)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tempfile::NamedTempFile;

    use super::*;

    const SIZE: u8 = 100;

    fn entry(header: Header, contents: &[u8]) -> Vec<u8> {
        let mut entry = Vec::new();
        header.write_to(contents.len() as u64, &mut entry).unwrap();
        let mut zlib = flate2::write::ZlibEncoder::new(entry, flate2::Compression::fast());
        zlib.write_all(contents).unwrap();
        zlib.finish().unwrap()
    }

    /// An object, and a line of so many deltas, each of which copies it.
    fn chain(deltas: u32) -> Vec<u8> {
        let mut pack = [&b"PACK\0\0\0\x02"[..], &(1 + deltas).to_be_bytes()].concat();
        let mut base = pack.len();
        pack.extend(entry(Header::Blob, &[7; SIZE as usize]));
        for _ in 0..deltas {
            let at = pack.len();
            let header = Header::OfsDelta { base_distance: (at - base) as u64 };
            pack.extend(entry(header, &[SIZE, SIZE, 0x90, SIZE]));
            base = at;
        }
        pack
    }

    fn with_checksum(mut pack: Vec<u8>) -> Vec<u8> {
        let mut hasher = gix::hash::hasher(gix::hash::Kind::Sha1);
        hasher.update(&pack);
        pack.extend(hasher.try_finalize().unwrap().as_bytes());
        pack
    }

    /// Whose end is not its last word.
    struct Resumed(Vec<&'static [u8]>);

    impl Read for Resumed {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.pop().unwrap_or_default().read(into)
        }
    }

    /// The name of a pack that is indexed here, or what is wrong with it.
    fn indexed(pack: &mut dyn BufRead, interrupt: &AtomicBool) -> Result<Option<ObjectId>, MirrorError> {
        let mut upstream = Upstream::new("git://host/x");
        upstream.max_object = SIZE.into();
        let (session, progress) = (&UpstreamSession::new(&upstream, interrupt).unwrap(), &FetchProgress::default());
        let (copy, since_entry) = (NamedTempFile::new().unwrap(), &Cell::new(0));
        let copied = Some(copy.as_file());
        let mut reader = PackReader { pack, session, progress, copy: copied, since_entry, has_ended: false };
        let name = index(&mut reader, copy.path(), &mut io::sink(), gix::hash::Kind::Sha1, &|_| Ok(()));
        name.map_err(|error| session.take_failure().unwrap_or_else(|| MirrorError::protocol("fetch", &error)))
    }

    #[test]
    fn what_takes_much_or_is_not_whole_is_left_to_the_git_program() {
        let is_indexed =
            |pack: Vec<u8>| indexed(&mut &pack[..], &AtomicBool::new(false)).map(|name| name.is_some()).unwrap();
        // Five objects in all.
        assert!(is_indexed(with_checksum(chain(2))));
        assert!(!is_indexed(with_checksum(chain(3))));
        assert!(!is_indexed([with_checksum(chain(2)), b"x".to_vec()].concat()));
        let mut thin = chain(0);
        thin[11] += 1;
        thin.extend(entry(Header::RefDelta { base_id: ObjectId::empty_blob(gix::hash::Kind::Sha1) }, &[0, 1, 1, 7]));
        assert!(!is_indexed(with_checksum(thin)));
        // Three bytes, and another seven bits of their number.
        let padded = [&chain(0)[..12], &[0xb3, 0], &entry(Header::Blob, b"abc")[1..]].concat();
        assert!(!is_indexed(with_checksum(padded)));
    }

    #[test]
    fn a_large_object_is_refused_before_the_next_one_comes() {
        let mut pack = chain(0);
        pack[11] += 1;
        pack.extend(entry(Header::Blob, &[7; SIZE as usize + 1]));
        pack[11] += 1;
        let error = indexed(&mut &pack[..], &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, MirrorError::ObjectTooLarge { .. }), "{error}");
    }

    #[test]
    fn nothing_is_read_after_the_end() {
        let (upstream, stop) = (Upstream::new("git://host/x"), AtomicBool::new(false));
        let (session, progress) = (&UpstreamSession::new(&upstream, &stop).unwrap(), &FetchProgress::default());
        let pack = &mut BufReader::new(Resumed(vec![b"two", b"", b"one"]));
        let mut reader =
            PackReader { pack, session, progress, copy: None, since_entry: &Cell::new(0), has_ended: false };
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert_eq!((all.as_slice(), reader.read(&mut [0; 8]).unwrap()), (&b"one"[..], 0));
    }

    /// Empty blocks, one after the other, which are no bytes of the object.
    #[test]
    fn an_entry_without_an_end_is_refused() {
        let begun = [&chain(0)[..12], &[0x31, 0x78, 0x01]].concat();
        let blocks = [0, 0, 0, 0xff, 0xff].repeat(1 << 20);
        let error = indexed(&mut begun.chain(&blocks[..]), &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, MirrorError::ObjectTooLarge { .. }), "{error}");
    }

    #[test]
    fn a_request_to_stop_is_heard_while_bytes_are_at_hand() {
        let error = indexed(&mut &with_checksum(chain(2))[..], &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(error, MirrorError::Interrupted), "{error}");
    }
}
