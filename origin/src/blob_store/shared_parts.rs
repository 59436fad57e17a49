//! What a blob that is being written shares with an earlier one.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempDir};
use weir_shared::digest::BlobDigest;

use super::StoredBlob;
use super::layout::{Extent, Layout, worth_sharing};
use super::stored::{LAYOUT, Part, is_same_file};
use super::temporary::without_path;

/// Links to files of an earlier blob, and the runs of bytes of the new one so far.
#[derive(Debug)]
pub(super) struct SharedParts {
    /// Becomes the blob's folder; a link has the number that its file has in the earlier blob.
    folder: TempDir,
    /// Where the earlier blob's bytes are.
    earlier: Layout,
    /// Which of its files are linked.
    linked: Vec<bool>,
    /// Where the new one's are; the file after those of the earlier blob is its own.
    layout: Layout,
}

impl SharedParts {
    /// Links to what is worth sharing of a blob; `None` when nothing is, or nothing can be linked.
    pub(super) fn of(earlier: &StoredBlob, temporary: &Path) -> io::Result<Option<Self>> {
        let files = earlier.layout().used().into_iter().zip(earlier.parts());
        let files =
            files.map(|(used, part)| Ok((used, part.file.metadata()?.len()))).collect::<io::Result<Vec<_>>>()?;
        // What is not worth it now will not be for a blob that needs some of it.
        let worth = worth_sharing(&files);
        if !worth.contains(&true) {
            return Ok(None);
        }
        let folder = tempfile::tempdir_in(temporary).map_err(|error| without_path(&error))?;
        let link = |((number, part), worth): ((u32, &Part), bool)| {
            let link = link_path(&folder, number);
            // Some file systems have no links, or no more of a file.
            let is_linked = worth && fs::hard_link(&part.path, &link).is_ok();
            // The name may stand for something else by now.
            let is_the_part = is_linked && is_same_file(&part.file, &link).unwrap_or_default();
            if is_linked && !is_the_part {
                fs::remove_file(&link)?;
            }
            Ok(is_the_part)
        };
        let linked = (0..).zip(earlier.parts()).zip(worth).map(link).collect::<io::Result<Vec<bool>>>()?;
        let (earlier, layout) = (earlier.layout().clone(), Layout::default());
        Ok(linked.contains(&true).then_some(Self { folder, earlier, linked, layout }))
    }

    /// Where bytes of the earlier blob are.
    pub(super) fn locate(&self, offset: u64, length: u64) -> Vec<Extent> {
        self.earlier.locate(offset..offset.saturating_add(length)).collect()
    }

    /// Goes on with a run of the earlier blob. False: its file is not shared.
    pub(super) fn append(&mut self, run: Extent) -> bool {
        let is_linked = self.linked.get(run.part as usize).copied().unwrap_or_default();
        if is_linked {
            self.layout.push(run);
        }
        is_linked
    }

    /// Goes on with bytes of the new blob's own file.
    pub(super) fn append_own(&mut self, offset: u64, length: u64) {
        let part = self.own();
        self.layout.push(Extent { part, offset, length });
    }

    /// The number of the new blob's own file.
    fn own(&self) -> u32 {
        u32::try_from(self.linked.len()).expect("a blob has few files")
    }

    /// Whether any bytes are shared.
    pub(super) fn is_used(&self) -> bool {
        let used = self.layout.used();
        used.iter().zip(&self.linked).any(|(used, _)| *used > 0)
    }

    /// The folder of the new blob, with its own file and its layout, all of which is on the disk; the folder itself is not
    /// yet. What turns out not to be worth a link is copied.
    pub(super) fn finish(mut self, mut own: NamedTempFile, digest: &BlobDigest) -> io::Result<TempDir> {
        self.copy_what_is_not_worth_it(&mut own)?;
        own.as_file().sync_all()?;
        let used = self.layout.used();
        let is_used = |part: u32| used.get(part as usize).is_some_and(|used| *used > 0);
        // Those that are used have the numbers from 0 on, in their order.
        let number = |part: u32| (0..part).filter(|before| is_used(*before)).count() as u32;
        let path = |part: u32| self.folder.path().join(number(part).to_string());
        for (part, linked) in (0..).zip(&self.linked) {
            let link = link_path(&self.folder, part);
            if is_used(part) {
                fs::rename(link, path(part))?;
            } else if *linked {
                fs::remove_file(link)?;
            }
        }
        if is_used(self.own()) {
            own.persist(path(self.own())).map_err(|error| without_path(&error.error))?;
        }
        let layout = self.layout.renumbered(number);
        let mut file = File::create_new(self.folder.path().join(LAYOUT))?;
        file.write_all(&layout.to_bytes(digest))?;
        file.sync_all()?;
        Ok(self.folder)
    }

    /// Moves the runs of files of which the new blob needs too little to its own file.
    fn copy_what_is_not_worth_it(&mut self, own: &mut NamedTempFile) -> io::Result<()> {
        let used = self.layout.used();
        let mut files = Vec::with_capacity(self.linked.len());
        for (part, linked) in (0..).zip(&self.linked) {
            let length = if *linked { fs::metadata(link_path(&self.folder, part))?.len() } else { 0 };
            files.push((used.get(part as usize).copied().unwrap_or_default(), length));
        }
        let worth = worth_sharing(&files);
        let (own_part, mut own_bytes) = (self.own(), own.as_file().metadata()?.len());
        let mut layout = Layout::default();
        for extent in self.layout.extents() {
            if extent.part == own_part || worth[extent.part as usize] {
                layout.push(extent);
                continue;
            }
            let mut file = File::open(link_path(&self.folder, extent.part))?;
            file.seek(SeekFrom::Start(extent.offset))?;
            let copied = io::copy(&mut file.take(extent.length), own)?;
            if copied != extent.length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            layout.push(Extent { part: own_part, offset: own_bytes, length: copied });
            own_bytes += copied;
        }
        self.layout = layout;
        Ok(())
    }
}

fn link_path(folder: &TempDir, number: u32) -> PathBuf {
    folder.path().join(format!("earlier-{number}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::keep;
    use super::super::{BlobError, BlobStore};
    use super::*;
    use crate::tarball::BlobSink;
    use proptest::prelude::*;
    use std::os::unix::fs::MetadataExt;

    const MIB: usize = 1 << 20;

    fn bytes(seed: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn store() -> (TempDir, BlobStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        (dir, store)
    }

    /// Keeps a blob after another: runs of that one, and bytes of its own.
    fn keep_after(store: &BlobStore, earlier: &BlobDigest, runs: &[Run]) -> (BlobDigest, Vec<u8>) {
        let earlier = store.open_stored(earlier).unwrap();
        let mut temporary = store.temporary_after(&earlier).unwrap();
        let mut whole = Vec::new();
        for run in runs {
            match run {
                Run::Own(bytes) => {
                    temporary.append(bytes).unwrap();
                    whole.extend_from_slice(bytes);
                }
                Run::Earlier(range) => {
                    let mut bytes = vec![0; range.len()];
                    earlier.read_exact_at(&mut bytes, range.start as u64).unwrap();
                    temporary.append_earlier(&bytes, range.start as u64).unwrap();
                    whole.extend_from_slice(&bytes);
                }
            }
        }
        let digest = temporary.end();
        assert_eq!(digest, BlobDigest::of(&whole));
        temporary.keep(&digest).unwrap();
        (digest, whole)
    }

    enum Run {
        Own(Vec<u8>),
        Earlier(std::ops::Range<usize>),
    }

    fn read(store: &BlobStore, digest: &BlobDigest) -> Vec<u8> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut store.open_verified(digest).unwrap().bytes.reader(), &mut bytes).unwrap();
        bytes
    }

    /// Bytes of the files below a folder, each counted once however many names it has.
    fn on_disk(folder: &Path) -> u64 {
        fn collect(folder: &Path, files: &mut std::collections::BTreeMap<u64, u64>) {
            for entry in fs::read_dir(folder).unwrap() {
                let (path, metadata) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
                if metadata.is_dir() {
                    collect(&path, files);
                } else {
                    files.insert(metadata.ino(), metadata.len());
                }
            }
        }
        let mut files = std::collections::BTreeMap::new();
        collect(folder, &mut files);
        files.values().sum()
    }

    /// Eight mebibytes, and the same with one of them changed.
    fn two(store: &BlobStore) -> (BlobDigest, BlobDigest, Vec<u8>) {
        let first = keep(store, &bytes(1, 8 * MIB));
        let runs = [Run::Earlier(0..6 * MIB), Run::Own(bytes(2, MIB)), Run::Earlier(7 * MIB..8 * MIB)];
        let (second, whole) = keep_after(store, &first, &runs);
        (first, second, whole)
    }

    #[test]
    fn what_two_blobs_have_in_common_is_stored_once_and_stays_with_whichever_stays() {
        let (dir, store) = store();
        let (first, second, whole) = two(&store);
        assert!(on_disk(dir.path()) < 9 * MIB as u64 + 4096);
        assert_eq!((read(&store, &second), store.size(&second).unwrap()), (whole.clone(), whole.len() as u64));
        let opened = store.open_pieces(&second).unwrap();
        let pieces: Vec<_> = (0..8).map(|piece| store.piece(&opened, piece).unwrap()).collect();
        assert_eq!(pieces.concat(), whole);

        assert!(store.remove(&first).unwrap());
        assert_eq!(read(&store, &second), whole);
        assert_eq!(store.in_folder(second.as_bytes()[0]).unwrap(), [second]);
        assert!(store.remove(&second).unwrap() && !store.remove(&second).unwrap());
        assert_eq!(on_disk(dir.path()), 0);
        // Who has it open reads on.
        assert_eq!(store.piece(&opened, 3).unwrap(), whole[3 * MIB..4 * MIB]);
    }

    #[test]
    fn a_file_that_rots_spoils_every_blob_that_needs_it_and_each_can_be_made_again() {
        let (_dir, store) = store();
        let (first, second, whole) = two(&store);
        let mut rotten = fs::read(store.path(&first)).unwrap();
        rotten[5 * MIB] ^= 1;
        fs::write(store.path(&first), rotten).unwrap();
        let opened = store.open_pieces(&second).unwrap();
        assert!(store.piece(&opened, 4).is_ok());
        assert!(matches!(store.piece(&opened, 5), Err(BlobError::Corrupt)));
        assert!(matches!(store.open_pieces(&second), Err(BlobError::Missing)));
        assert!(matches!(store.open_verified(&first), Err(BlobError::Corrupt)));
        assert_eq!(keep(&store, &whole), second);
        assert_eq!(read(&store, &second), whole);
    }

    #[test]
    fn a_folder_that_is_no_blob_is_removed() {
        type Damage = fn(&Path);
        let damages: [Damage; 7] = [
            |folder| fs::remove_file(folder.join(LAYOUT)).unwrap(),
            |folder| {
                fs::remove_dir_all(folder).unwrap();
                fs::write(folder, b"a file").unwrap();
            },
            |folder| fs::remove_file(folder.join("1")).unwrap(),
            |folder| fs::write(folder.join(LAYOUT), b"something else").unwrap(),
            |folder| fs::write(folder.join("1"), b"short").unwrap(),
            |folder| fs::rename(folder.join("1"), folder.join("0")).unwrap(),
            |folder| fs::write(folder.join(LAYOUT), fs::read(folder.join(LAYOUT)).unwrap().split_at(32).0).unwrap(),
        ];
        for damage in damages {
            let (_dir, store) = store();
            let (first, second, whole) = two(&store);
            damage(&store.parts_path(&second));
            let examined = store.examine(&second).unwrap().unwrap();
            assert_eq!(examined.bytes, super::super::Bytes::Damaged);
            assert!(store.parts_path(&second).exists(), "a look changes nothing");
            assert!(matches!(store.open_verified(&second), Err(BlobError::Corrupt)));
            assert!(matches!(store.open_verified(&second), Err(BlobError::Missing)));
            assert!(!store.parts_path(&second).exists());
            assert_eq!(read(&store, &first), bytes(1, 8 * MIB));
            keep(&store, &whole);
            assert_eq!(read(&store, &second), whole);
        }
    }

    #[test]
    fn a_blob_of_which_a_file_is_gone_or_was_cut_is_not_there() {
        let damages: [fn(&Path); 2] = [
            |part| fs::remove_file(part).unwrap(),
            |part| fs::File::options().write(true).open(part).unwrap().set_len(MIB as u64 - 1).unwrap(),
        ];
        for damage in damages {
            let (_dir, store) = store();
            let (_, second, whole) = two(&store);
            assert!(store.contains(&second, whole.len() as u64));
            damage(&store.parts_path(&second).join("1"));
            assert!(!store.contains(&second, whole.len() as u64));
            assert!(matches!(store.size(&second), Err(BlobError::Missing)));
            keep(&store, &whole);
            assert!(store.contains(&second, whole.len() as u64));
        }
    }

    #[test]
    fn what_is_written_has_no_name_until_it_is_given_one() {
        let (dir, store) = store();
        let first = keep(&store, &bytes(1, 4 * MIB));
        let earlier = store.open_stored(&first).unwrap();
        let written = || {
            let mut temporary = store.temporary_after(&earlier).unwrap();
            temporary.append_earlier(&bytes(1, 4 * MIB), 0).unwrap();
            temporary.append(b"more").unwrap();
            let digest = temporary.end();
            (digest, temporary.finish(&digest).unwrap())
        };
        let (digest, dropped) = written();
        assert!(!store.has_name(&digest));
        drop(dropped);
        assert_eq!(fs::read_dir(dir.path().join(super::super::TEMPORARY)).unwrap().count(), 0);
        written().1.keep().unwrap();
        assert_eq!(read(&store, &digest).len(), 4 * MIB + 4);
    }

    #[test]
    fn either_form_of_a_blob_takes_the_place_of_the_other() {
        let (dir, store) = store();
        let (first, second, whole) = two(&store);
        keep(&store, &whole);
        assert!(store.path(&second).exists() && !store.parts_path(&second).exists());
        for _ in 0..2 {
            assert_eq!(two(&store).1, second);
            assert!(!store.path(&second).exists() && store.parts_path(&second).exists());
            assert_eq!(read(&store, &second), whole);
        }
        // A process that was killed in between leaves both.
        fs::write(store.path(&second), &whole).unwrap();
        let listed = store.list().unwrap();
        assert_eq!(listed.left_over, [store.parts_path(&second)]);
        assert_eq!(store.in_folder(second.as_bytes()[0]).unwrap().len(), 1);
        assert!(!store.parts_path(&second).exists());
        assert_eq!(read(&store, &second), whole);
        drop((dir, first));
    }

    #[test]
    fn an_earlier_blob_that_has_gone_is_copied() {
        let (_dir, store) = store();
        let first = keep(&store, &bytes(1, 4 * MIB));
        let earlier = store.open_stored(&first).unwrap();
        store.remove(&first).unwrap();
        let mut temporary = store.temporary_after(&earlier).unwrap();
        temporary.append_earlier(&bytes(1, 4 * MIB), 0).unwrap();
        let digest = temporary.end();
        assert!(temporary.append(b"more").is_err(), "it has ended");
        temporary.keep(&digest).unwrap();
        assert!(store.path(&digest).exists());
        assert_eq!(read(&store, &digest), bytes(1, 4 * MIB));
    }

    #[test]
    fn of_a_large_file_that_a_blob_needs_little_of_nothing_is_linked() {
        let (dir, store) = store();
        let first = keep(&store, &bytes(1, 8 * MIB));
        let (second, whole) = keep_after(&store, &first, &[Run::Own(bytes(2, 100)), Run::Earlier(MIB..3 * MIB)]);
        store.remove(&first).unwrap();
        assert_eq!(read(&store, &second), whole);
        assert!(on_disk(dir.path()) < 2 * MIB as u64 + 4096);
    }

    #[test]
    fn whoever_reads_finds_the_blob_while_either_form_takes_the_place_of_the_other() {
        let (_dir, store) = store();
        let first = keep(&store, &bytes(1, 2 * MIB));
        let runs = || [Run::Earlier(0..2 * MIB), Run::Own(bytes(2, 1000))];
        let (second, whole) = keep_after(&store, &first, &runs());
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                            assert_eq!(store.size(&second).unwrap(), whole.len() as u64);
                            let opened = store.open_pieces(&second).unwrap();
                            (0..3).for_each(|piece| drop(store.piece(&opened, piece).unwrap()));
                        }
                    })
                })
                .collect();
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    let (store, whole, runs) = (&store, &whole, &runs);
                    scope.spawn(move || {
                        for _ in 0..25 {
                            if writer == 0 {
                                keep(store, whole);
                            } else {
                                keep_after(store, &first, &runs());
                            }
                        }
                    })
                })
                .collect();
            let written: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            for thread in readers.into_iter().map(std::thread::ScopedJoinHandle::join).chain(written) {
                thread.unwrap();
            }
        });
        assert_eq!(read(&store, &second), whole);
        assert_ne!(store.path(&second).exists(), store.parts_path(&second).exists());
        assert_eq!(fs::read_dir(store.root.join(super::super::TEMPORARY)).unwrap().count(), 0);
    }

    #[test]
    fn what_a_reader_found_wrong_is_not_what_has_the_name_by_then() {
        let (_dir, store) = store();
        let (_, second, whole) = two(&store);
        let parts = store.parts_path(&second);
        fs::write(parts.join("1"), vec![7; MIB]).unwrap();
        let (one, other) = (store.open_pieces(&second).unwrap(), store.open_pieces(&second).unwrap());
        assert!(matches!(store.piece(&one, 6), Err(BlobError::Corrupt)));
        for _ in 0..20 {
            keep(&store, &whole);
            assert!(matches!(store.piece(&other, 6), Err(BlobError::Corrupt)));
            assert_eq!(read(&store, &second), whole, "the good one stays");
            store.remove(&second).unwrap();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
        /// Versions of a blob of 24 blocks, each with some of the blocks new; versions go after a while, as sweeps have it.
        #[test]
        fn a_blob_after_many_versions_is_right_and_holds_on_to_at_most_twice_its_bytes(
            versions in proptest::collection::vec(proptest::collection::vec(0usize..24, 1..20), 1..16)
        ) {
            const BLOCK: usize = 300_000;
            let (dir, store) = store();
            let mut last = keep(&store, &bytes(0, 24 * BLOCK));
            for (version, changed) in versions.iter().enumerate() {
                let runs: Vec<Run> = (0..24).map(|block| match changed.contains(&block) {
                    true => Run::Own(bytes((version * 24 + block) as u64 + 1, BLOCK)),
                    false => Run::Earlier(block * BLOCK..(block + 1) * BLOCK),
                }).collect();
                let (digest, whole) = keep_after(&store, &last, &runs);
                store.remove(&last).unwrap();
                prop_assert_eq!(read(&store, &digest), whole);
                let stored = store.open_stored(&digest).unwrap();
                prop_assert!(stored.parts().len() <= super::super::layout::MAX_PARTS);
                let most = 2 * (runs.len() * BLOCK) as u64 + 4096;
                prop_assert!(on_disk(dir.path()) <= most, "{} bytes", on_disk(dir.path()));
                last = digest;
            }
        }
    }
}
