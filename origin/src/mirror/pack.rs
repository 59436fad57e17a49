//! A pack as it comes: gix reads, completes and indexes it, within what it may take.
//!
//! The whole pack is on the disk before any delta in it is resolved.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use gix::error::ErrorExt;
use gix::objs::Find;
use gix::odb::pack;
use gix::odb::pack::data::input::{BytesToEntriesIter, EntriesToBytesIter, EntryDataMode, Mode};
use gix::progress::{BoxedDynNestedProgress, Count, DynNestedProgress, Progress};
use tempfile::NamedTempFile;

use super::MirrorError;
use super::attempt::Attempt;
use super::progress::{CHECKED_BYTES, RECEIVED_BYTES, RECEIVED_OBJECTS};
use super::resolving::Resolving;
use super::thin_pack::Completed;
use crate::data_dir::without_path;
use crate::source::Upstream;

/// What the compressed form of an entry may have more than its object: what nothing compresses grows a little.
const BYTES_BESIDE_OBJECT: u64 = 64 << 10;

/// Receives a pack, and puts it and its index where packs are; nothing of it counts before. What was not finished is
/// removed, or is a leftover.
pub(super) fn receive(
    pack: &mut dyn BufRead,
    repo: &gix::Repository,
    attempt: &Attempt,
    progress: &mut dyn DynNestedProgress,
    interrupt: &AtomicBool,
) -> gix::Result<()> {
    let Upstream { max_object, max_objects, max_delta_bases, .. } = *attempt.upstream;
    let check_count = |objects| {
        if objects > max_objects { Err(MirrorError::TooManyObjects { objects, limit: max_objects }) } else { Ok(()) }
    };
    let (hash, folder) = (repo.object_hash(), repo.objects.store_ref().path().join("pack"));
    let since_entry = Cell::new(0);
    let mut incoming = Incoming {
        pack,
        attempt,
        since_entry: &since_entry,
        most: max_object.saturating_add(max_object / 64 + BYTES_BESIDE_OBJECT),
        counter: progress.add_child_with_id("pack".to_owned(), RECEIVED_BYTES),
        is_shown: false,
    };
    incoming.counter.init(None, None);
    let entries = BytesToEntriesIter::new_from_header(incoming, Mode::Verify, EntryDataMode::KeepAndCrc32, hash)?;
    let (version, objects) = (entries.version(), entries.size_hint().0);
    check_count(objects).map_err(|error| attempt.fail(error).raise())?;
    let entries = entries.map(|entry| {
        since_entry.set(0);
        match entry {
            Ok(entry) if entry.decompressed_size > max_object => {
                Err(attempt.fail(MirrorError::ObjectTooLarge { limit: max_object }).raise())
            }
            entry => entry,
        }
    });
    let bases = Resolving::new(hash, max_object, max_delta_bases);
    let completed = Completed::new(entries, Mirrored::new(repo, attempt));
    // With copies of all that it rests on, which may be much larger than what came.
    let (mut count, mut bytes) = (0, 0);
    let completed = completed.map(|entry| {
        let entry = entry?;
        (count, bytes) = (count + 1, bytes + entry.bytes_in_pack());
        check_count(count).and_then(|()| attempt.has_room(bytes)).map_err(|error| attempt.fail(error).raise())?;
        bases.add(&entry);
        Ok(entry)
    });
    let (data, mut index) = (temporary(&folder)?, temporary(&folder)?);
    let mut written = EntriesToBytesIter::new(completed, PackFile::of(&data, attempt, progress)?, version, hash);
    let mut shown = progress.add_child_with_id("objects".to_owned(), RECEIVED_OBJECTS);
    let mut begun = false;
    // Without a word on how many come: gix would set all of their places aside at once, and take that for one object.
    let mut entries = std::iter::from_fn(|| {
        if !std::mem::replace(&mut begun, true) {
            // After gix has shown that it expects none.
            shown.init(Some(objects), None);
        }
        written.next().inspect(|_| shown.inc())
    });
    let indexed = pack::index::write_data_iter_to_stream(
        pack::index::Version::default(),
        || Ok((bases.resolver(), pack::data::File::at(data.path(), hash).map_err(io::Error::other)?)),
        &mut entries,
        Some(1),
        progress,
        &mut index,
        interrupt,
        hash,
        Some(usize::try_from(max_object).unwrap_or(usize::MAX)),
        version,
    );
    if let Some(error) = bases.refused() {
        let _ = attempt.fail(error);
    }
    let indexed = indexed?;
    if indexed.num_objects > 0 {
        let place = folder.join(format!("pack-{}.pack", indexed.data_hash));
        data.persist(&place).map_err(|error| without_path(&error.error).raise())?;
        // With its index a pack counts.
        index.persist(place.with_extension("idx")).map_err(|error| without_path(&error.error).raise())?;
    }
    Ok(())
}

fn temporary(folder: &Path) -> gix::Result<NamedTempFile> {
    let file = tempfile::Builder::new().prefix(".incoming-").tempfile_in(folder);
    file.map_err(|error| without_path(&error).raise())
}

/// What deltas may be told against: the objects that are there already. That one of them cannot be read is no fault of what
/// comes.
struct Mirrored<'a> {
    objects: gix::OdbHandle,
    attempt: &'a Attempt<'a>,
}

impl<'a> Mirrored<'a> {
    fn new(repo: &gix::Repository, attempt: &'a Attempt<'a>) -> Self {
        let mut objects = repo.objects.clone();
        // Nobody else writes while a pack comes: what is not there need not be looked for on the disk, once for each delta.
        objects.refresh_never();
        Self { objects, attempt }
    }
}

impl Find for Mirrored<'_> {
    fn try_find<'b>(&self, id: &gix::oid, buffer: &'b mut Vec<u8>) -> gix::Result<Option<gix::objs::Data<'b>>> {
        let found = self.objects.try_find(id, buffer);
        found.map_err(|error| {
            self.attempt.fail(MirrorError::mirror("read an object that the upstream's deltas rest on")(error)).raise()
        })
    }
}

/// The bytes of a pack, counted. gix keeps those of an entry until it is whole, and there may be no end to it.
struct Incoming<'a> {
    pack: &'a mut dyn BufRead,
    attempt: &'a Attempt<'a>,
    since_entry: &'a Cell<u64>,
    /// So many between one entry and the next.
    most: u64,
    counter: BoxedDynNestedProgress,
    /// Bytes were shown and are not consumed yet: gix has them shown once more as it does, and takes no error then.
    is_shown: bool,
}

impl BufRead for Incoming<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if !self.is_shown {
            // Some bytes that are here already are much to do.
            self.attempt.goes_on().map_err(|error| self.attempt.fail(error))?;
            if self.since_entry.get() > self.most {
                let limit = self.attempt.upstream.max_object;
                return Err(self.attempt.fail(MirrorError::ObjectTooLarge { limit }));
            }
        }
        let shown = self.pack.fill_buf()?;
        self.is_shown = true;
        Ok(shown)
    }

    fn consume(&mut self, bytes: usize) {
        self.is_shown = false;
        self.since_entry.set(self.since_entry.get() + bytes as u64);
        self.counter.inc_by(bytes);
        self.pack.consume(bytes);
    }
}

impl Read for Incoming<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

/// The file of a pack, which is written and then read once for its checksum. With a large one that takes minutes, and gix
/// neither counts them nor looks whether somebody asks to stop.
struct PackFile<'a> {
    file: BufWriter<File>,
    attempt: &'a Attempt<'a>,
    /// Of what was read again.
    counter: BoxedDynNestedProgress,
    is_shown: bool,
}

impl<'a> PackFile<'a> {
    fn of(file: &NamedTempFile, attempt: &'a Attempt<'a>, progress: &mut dyn DynNestedProgress) -> gix::Result<Self> {
        let file = file.reopen().map_err(|error| without_path(&error).raise())?;
        let counter = progress.add_child_with_id("checked".to_owned(), CHECKED_BYTES);
        Ok(Self { file: BufWriter::with_capacity(64 << 10, file), attempt, counter, is_shown: false })
    }
}

impl Write for PackFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Read for PackFile<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.attempt.goes_on().map_err(|error| self.attempt.fail(error))?;
        self.file.flush()?;
        if !std::mem::replace(&mut self.is_shown, true) {
            let written = usize::try_from(self.file.get_ref().metadata()?.len()).ok();
            self.counter.init(written, None);
        }
        let read = self.file.get_mut().read(into)?;
        self.counter.inc_by(read);
        Ok(read)
    }
}

impl Seek for PackFile<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use gix::odb::pack::data::entry::Header;

    use super::*;
    use crate::mirror::{FetchProgress, Mirror};

    /// A pack that is there at once; somebody asks to stop as soon as it is read.
    struct AtHand<'a> {
        pack: &'a [u8],
        interrupt: &'a AtomicBool,
    }

    impl Read for AtHand<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.pack.read(into)
        }
    }

    impl BufRead for AtHand<'_> {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            self.pack.fill_buf()
        }

        fn consume(&mut self, bytes: usize) {
            self.interrupt.store(true, Ordering::Relaxed);
            self.pack.consume(bytes);
        }
    }

    #[test]
    fn a_request_to_stop_is_heard_while_bytes_are_at_hand() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Mirror::open(&dir.path().join("shop.git")).unwrap().repository().unwrap().to_thread_local();
        let mut blob = Vec::new();
        Header::Blob.write_to(3, &mut blob).unwrap();
        let mut zlib = flate2::write::ZlibEncoder::new(blob, flate2::Compression::fast());
        zlib.write_all(b"abc").unwrap();
        let pack = [&b"PACK\0\0\0\x02\0\0\x03\xe8"[..], &zlib.finish().unwrap().repeat(1000)].concat();
        let (upstream, interrupt) = (Upstream::new("git://host/x"), AtomicBool::new(false));
        let attempt = Attempt::new(&upstream, &interrupt).unwrap();
        let mut at_hand = AtHand { pack: &pack, interrupt: &interrupt };
        receive(&mut at_hand, &repo, &attempt, &mut gix::progress::Discard, &interrupt).unwrap_err();
        assert!(matches!(attempt.failure(), Some(MirrorError::Interrupted)));
        assert!(at_hand.pack.len() > pack.len() / 2, "{} bytes were left", at_hand.pack.len());
    }

    #[test]
    fn a_pack_that_is_read_again_is_seen_to_go_on_and_ends_when_somebody_asks() {
        let (upstream, interrupt) = (Upstream::new("git://host/x"), AtomicBool::new(false));
        let attempt = Attempt::new(&upstream, &interrupt).unwrap();
        let progress = FetchProgress::default();
        progress.preparing();
        let mut file = PackFile::of(&NamedTempFile::new().unwrap(), &attempt, &mut progress.root()).unwrap();
        file.write_all(&[7; 1000]).unwrap();
        assert_eq!(progress.snapshot().phase, "preparing");
        file.rewind().unwrap();
        for done in [400, 800] {
            file.read_exact(&mut [0; 400]).unwrap();
            let snapshot = progress.snapshot();
            assert_eq!((snapshot.phase, snapshot.done, snapshot.total), ("checking", done, Some(1000)));
        }
        interrupt.store(true, Ordering::Relaxed);
        file.read_exact(&mut [0; 200]).unwrap_err();
        assert!(matches!(attempt.failure(), Some(MirrorError::Interrupted)));
    }
}
