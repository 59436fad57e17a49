//! Indexes a pack with gix while it is received, with a third less CPU time than the git program. Packs with external
//! bases or high memory usage are left to the git program.

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

use super::git_progress::{GixProgress, RECEIVED_OBJECTS};
use super::git_session::GitSession;
use super::{FetchProgress, MirrorError, limits, memory_estimate};

/// The size of a read.
const BUFFER_BYTES: usize = 64 << 10;

/// A pack while it is received.
pub(super) struct PackReader<'a> {
    pub(super) pack: &'a mut dyn BufRead,
    pub(super) session: &'a GitSession<'a>,
    pub(super) progress: &'a FetchProgress,
    /// The file to copy the pack to.
    pub(super) copy: Option<&'a File>,
    /// Bytes since the last entry. gix keeps them in memory, and an entry may have no end.
    pub(super) since_entry: &'a Cell<u64>,
    /// Nothing is read after the end: the upstream may send other data, or block.
    pub(super) has_ended: bool,
}

impl Read for PackReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.has_ended {
            return Ok(0);
        }
        let session = self.session;
        // Received bytes may mean much work.
        session.network.check_interrupt().map_err(|error| session.record(error))?;
        let read = self.pack.read(into)?;
        self.has_ended = read == 0 && !into.is_empty();
        self.progress.received(read);
        if let Some(mut copy) = self.copy {
            copy.write_all(&into[..read]).map_err(|error| session.record(MirrorError::local("be written")(error)))?;
            let limit = session.upstream.limits.max_object.as_u64();
            if self.since_entry.get() > limit.saturating_add(limit / 64 + limits::ENTRY_OVERHEAD) {
                return Err(session.record(MirrorError::ObjectTooLarge { limit }));
            }
            self.since_entry.set(self.since_entry.get() + read as u64);
        }
        Ok(read)
    }
}

/// Indexes a pack while it is copied to a file. Returns its name, or `None` if the git program has to index it.
/// `reserve` is called with the number of objects before they are received.
pub(super) fn index(
    reader: &mut PackReader,
    copy: &Path,
    index: &mut dyn Write,
    hash: gix::hash::Kind,
    reserve: &dyn Fn(usize) -> Result<(), MirrorError>,
) -> gix::Result<Option<ObjectId>> {
    let (session, since_entry) = (reader.session, reader.since_entry);
    let of_upstream = &session.upstream.limits;
    let (max_object, limit) = (of_upstream.max_object.as_u64(), of_upstream.max_objects);
    let mut progress = GixProgress::new(reader.progress);
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
    // An iterator without a size hint: gix would allocate space for all declared objects at once.
    let mut reading = Some(entries);
    let mut entries = std::iter::from_fn(|| {
        since_entry.set(0);
        let Some(entry) = reading.as_mut()?.next() else {
            // Its buffer is as large as the largest entry.
            reading = None;
            return None;
        };
        shown.inc();
        Some(entry.and_then(|entry| {
            let (header, size) = (entry.header, entry.decompressed_size);
            memory_estimate::check_entry(header, size, max_object).map_err(|error| session.record(error).raise())?;
            // gix computes a wrong checksum for a size with padding.
            let is_padded = usize::from(entry.header_size) != header.size(size);
            if is_padded || matches!(header, Header::RefDelta { .. }) {
                for_git.set(true);
                return Err(message("the pack is left to the git program").raise());
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
        // Bytes after the pack do not belong to it.
        let has_more = pack.pack_end() as u64 != end.get();
        for_git.set(has_more || needed > limits::object_memory(max_object));
        if for_git.get() { Err(io::Error::other("it needs too much memory")) } else { Ok((entry_bytes, pack)) }
    };
    let indexed = pack::index::write_data_iter_to_stream(
        pack::index::Version::default(),
        resolver,
        &mut entries,
        Some(1),
        &mut progress,
        index,
        session.network.interrupt(),
        hash,
        usize::try_from(limits::max_delta_chain(max_object)).ok(),
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

    use bytesize::ByteSize;
    use weir_upstream::Upstream;

    use super::*;

    const SIZE: u8 = 100;

    fn entry(header: Header, contents: &[u8]) -> Vec<u8> {
        let mut entry = Vec::new();
        header.write_to(contents.len() as u64, &mut entry).unwrap();
        let mut zlib = flate2::write::ZlibEncoder::new(entry, flate2::Compression::fast());
        zlib.write_all(contents).unwrap();
        zlib.finish().unwrap()
    }

    /// A pack of an object and a chain of deltas, each of which copies it.
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

    /// A reader that returns more after its end.
    struct Resumed(Vec<&'static [u8]>);

    impl Read for Resumed {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.pop().unwrap_or_default().read(into)
        }
    }

    /// The name of a pack that gix can index, or the error.
    fn indexed(pack: &mut dyn BufRead, interrupt: &AtomicBool) -> Result<Option<ObjectId>, MirrorError> {
        let mut upstream = Upstream::new("git://host/x");
        upstream.limits.max_object = ByteSize(SIZE.into());
        let (session, progress) = (&GitSession::new(&upstream, interrupt).unwrap(), &FetchProgress::default());
        let (copy, since_entry) = (NamedTempFile::new().unwrap(), &Cell::new(0));
        let copied = Some(copy.as_file());
        let mut reader = PackReader { pack, session, progress, copy: copied, since_entry, has_ended: false };
        let name = index(&mut reader, copy.path(), &mut io::sink(), gix::hash::Kind::Sha1, &|_| Ok(()));
        name.map_err(|error| session.take_failure().unwrap_or_else(|| MirrorError::protocol("fetch", &error)))
    }

    #[test]
    fn packs_that_are_large_or_thin_are_left_to_the_git_program() {
        let is_indexed =
            |pack: Vec<u8>| indexed(&mut &pack[..], &AtomicBool::new(false)).map(|name| name.is_some()).unwrap();
        // Five objects in memory.
        assert!(is_indexed(with_checksum(chain(2))));
        assert!(!is_indexed(with_checksum(chain(3))));
        assert!(!is_indexed([with_checksum(chain(2)), b"x".to_vec()].concat()));
        let mut thin = chain(0);
        thin[11] += 1;
        thin.extend(entry(Header::RefDelta { base_id: ObjectId::empty_blob(gix::hash::Kind::Sha1) }, &[0, 1, 1, 7]));
        assert!(!is_indexed(with_checksum(thin)));
        // Three bytes, with seven more bits of size.
        let padded = [&chain(0)[..12], &[0xb3, 0], &entry(Header::Blob, b"abc")[1..]].concat();
        assert!(!is_indexed(with_checksum(padded)));
    }

    #[test]
    fn a_large_object_is_refused_before_the_next_one_is_read() {
        let mut pack = chain(0);
        pack[11] += 1;
        pack.extend(entry(Header::Blob, &[7; SIZE as usize + 1]));
        pack[11] += 1;
        let error = indexed(&mut &pack[..], &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, MirrorError::ObjectTooLarge { .. }), "{error}");
    }

    #[test]
    fn nothing_is_read_after_the_end_of_a_pack() {
        let (upstream, stop) = (Upstream::new("git://host/x"), AtomicBool::new(false));
        let (session, progress) = (&GitSession::new(&upstream, &stop).unwrap(), &FetchProgress::default());
        let pack = &mut BufReader::new(Resumed(vec![b"two", b"", b"one"]));
        let mut reader =
            PackReader { pack, session, progress, copy: None, since_entry: &Cell::new(0), has_ended: false };
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert_eq!((all.as_slice(), reader.read(&mut [0; 8]).unwrap()), (&b"one"[..], 0));
    }

    /// Empty deflate blocks, which add nothing to the object.
    #[test]
    fn an_endless_entry_is_refused() {
        let start = [&chain(0)[..12], &[0x31, 0x78, 0x01]].concat();
        let blocks = [0, 0, 0, 0xff, 0xff].repeat(1 << 20);
        let error = indexed(&mut start.chain(&blocks[..]), &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, MirrorError::ObjectTooLarge { .. }), "{error}");
    }

    #[test]
    fn an_interrupt_ends_indexing_of_received_bytes() {
        let error = indexed(&mut &with_checksum(chain(2))[..], &AtomicBool::new(true)).unwrap_err();
        assert!(error.is_interrupted(), "{error}");
    }
}
