//! Rebuilds the tar of a release, byte for byte, from its files.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use rustix::fs::{FileType, Mode, Stat};
use weir_protocol::digest::TarballDigest;
use weir_protocol::tar_writer::{END, HeaderKind, padding, write_header};

use crate::confined_dir::{ConfinedDir, is_type};
use crate::modes::Modes;

/// The most bytes of the names in folders that are in memory: a release with more is not rebuilt.
const MAX_NAME_BYTES: usize = 16 << 20;

/// The tar of a release, which has at most `size` bytes: it is as large as that, unless somebody has changed the files. No more of
/// it is in memory than the names in the folders above an entry, and one header.
pub struct RebuiltTar {
    dir: ConfinedDir,
    /// The path of the last entry: of a directory with a `/` at the end.
    path: Vec<u8>,
    /// The folders above it.
    folders: Vec<Folder>,
    /// A header, padding or the end, of which `head_at` bytes were read.
    head: Vec<u8>,
    head_at: usize,
    /// The contents after the header: the file, and the bytes of it that are left.
    file: Option<(File, u64)>,
    padding: usize,
    /// The most bytes of the names in folders.
    max_name_bytes: usize,
    /// Bytes that the tar may still have.
    left: u64,
    has_ended: bool,
}

struct Folder {
    /// The length of its path.
    length: usize,
    /// The names that follow.
    names: std::vec::IntoIter<Vec<u8>>,
    /// The bytes of all names.
    bytes: usize,
}

impl RebuiltTar {
    pub fn open(release: &Path, size: u64) -> io::Result<Self> {
        Self::begin(release, size, MAX_NAME_BYTES)
    }

    fn begin(release: &Path, left: u64, max_name_bytes: usize) -> io::Result<Self> {
        let (dir, path, folders) = (ConfinedDir::open(release)?, Vec::new(), Vec::new());
        let (head, file, head_at, padding, has_ended) = (Vec::new(), None, 0, 0, false);
        let mut tar = Self { dir, path, folders, head, head_at, file, padding, max_name_bytes, left, has_ended };
        tar.enter()?;
        Ok(tar)
    }

    /// Lists the folder that was the last entry.
    fn enter(&mut self) -> io::Result<()> {
        let path = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        let most = self.folders.iter().fold(self.max_name_bytes, |most, folder| most - folder.bytes);
        let (names, bytes) = self.dir.sorted_names(path, most)?;
        self.folders.push(Folder { length: self.path.len(), names: names.into_iter(), bytes });
        Ok(())
    }

    /// Goes to the next entry in the order of format 1; `false` after the last one.
    fn advance(&mut self) -> io::Result<bool> {
        if self.path.ends_with(b"/") {
            self.enter()?;
        }
        while let Some(folder) = self.folders.last_mut() {
            self.path.truncate(folder.length);
            if let Some(name) = folder.names.next() {
                self.path.extend_from_slice(&name);
                return Ok(true);
            }
            self.folders.pop();
        }
        Ok(false)
    }

    /// Begins the next entry, or the end; `false` after the end.
    fn next(&mut self) -> io::Result<bool> {
        self.head.clear();
        self.head_at = 0;
        let mut contents = 0;
        if self.advance()? {
            let name = &self.path[..];
            let path = name.strip_suffix(b"/").unwrap_or(name);
            let stat = self.dir.stat(path)?.ok_or_else(changed)?;
            if is_type(&stat, FileType::Directory) {
                write_header(&mut self.head, name, HeaderKind::Directory);
            } else if is_type(&stat, FileType::Symlink) {
                write_header(&mut self.head, name, HeaderKind::Symlink { target: &self.dir.read_link(path)? });
            } else if is_type(&stat, FileType::RegularFile) {
                contents = u64::try_from(stat.st_size).map_err(io::Error::other)?;
                let (executable, size) = (is_executable(&stat), contents);
                write_header(&mut self.head, name, HeaderKind::File { executable, size });
                self.padding = padding(contents);
                self.file = Some((self.dir.open_file(path)?, contents));
            } else {
                return Err(changed());
            }
        } else if self.has_ended {
            return Ok(false);
        } else {
            self.has_ended = true;
            self.head.extend_from_slice(&END);
        }
        let bytes = contents.saturating_add((self.head.len() + self.padding) as u64);
        self.left = self.left.checked_sub(bytes).ok_or_else(changed)?;
        Ok(true)
    }
}

impl Read for RebuiltTar {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if self.head_at < self.head.len() {
                let read = (&self.head[self.head_at..]).read(buffer)?;
                self.head_at += read;
                return Ok(read);
            }
            match self.file.take() {
                Some((mut file, left)) if left > 0 => {
                    let read = file.by_ref().take(left).read(buffer);
                    let rest = left - read.as_ref().map_or(0, |read| *read as u64);
                    // A read that was interrupted is repeated.
                    self.file = Some((file, rest));
                    return if matches!(read, Ok(0)) { Err(changed()) } else { read };
                }
                Some(_) => {
                    self.head.clear();
                    self.head.resize(std::mem::take(&mut self.padding), 0);
                    self.head_at = 0;
                }
                None if self.next()? => {}
                None => return Ok(0),
            }
        }
    }
}

/// The digest of a tar. Blocks.
pub fn digest_of(tar: impl Read) -> io::Result<TarballDigest> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut BufReader::with_capacity(256 << 10, tar), &mut hasher)?;
    Ok(hasher.finalize().into())
}

/// The digest of the tar of a release, which has at most `size` bytes.
pub(crate) fn digest_on_disk(release: &Path, size: u64) -> io::Result<TarballDigest> {
    digest_of(RebuiltTar::begin(release, size, usize::MAX)?)
}

/// Whether a file of a release may be that of another one, too. Folders that a hook made unreadable are left out.
pub(crate) fn has_links(release: &Path) -> io::Result<bool> {
    let (mut found, mut stats) = (false, ConfinedDir::open(release)?);
    ConfinedDir::open(release)?.skip_unreadable().walk(|path, is_directory| {
        found = !is_directory && stats.stat(path).is_ok_and(|stat| stat.is_some_and(|stat| stat.st_nlink > 1));
        !found
    })?;
    Ok(found)
}

/// Whether all entries of a release have the modes that it would get now.
pub(crate) fn has_modes(release: &Path, modes: Modes) -> io::Result<bool> {
    let mut stats = ConfinedDir::open(release)?;
    let Some(modes) = modes.of_release(&stats.stat_root()?) else { return Ok(false) };
    let mut all = true;
    ConfinedDir::open(release)?.walk(|path, _| {
        all = stats.stat(path).is_ok_and(|stat| {
            stat.is_some_and(|stat| {
                is_type(&stat, FileType::Symlink)
                    || is_type(&stat, FileType::Directory) && modes.is_of_directory(&stat)
                    || is_type(&stat, FileType::RegularFile) && modes.is_of_file(&stat, is_executable(&stat))
            })
        });
        all
    })?;
    Ok(all)
}

fn is_executable(stat: &Stat) -> bool {
    Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR)
}

fn changed() -> io::Error {
    io::Error::other("the files of the release were changed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unpack::{Limits, unpack};
    use crate::writers::Unpacking;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::io::Write as _;
    use weir_protocol::tar_writer::pad;

    fn rebuild(release: &Path, size: u64) -> io::Result<Vec<u8>> {
        let mut tar = Vec::new();
        RebuiltTar::open(release, size)?.read_to_end(&mut tar)?;
        Ok(tar)
    }

    #[derive(Debug, Clone)]
    enum Kind {
        File(Vec<u8>, bool),
        Link(Vec<u8>),
    }

    /// The tar of these entries, as an origin writes it.
    fn tar(entries: &BTreeMap<Vec<u8>, Kind>) -> Vec<u8> {
        let mut all: BTreeMap<Vec<u8>, Option<&Kind>> = BTreeMap::new();
        for (path, kind) in entries {
            let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
            all.extend(slashes.map(|at| (path[..=at].to_vec(), None)));
            all.insert(path.clone(), Some(kind));
        }
        let mut tar = Vec::new();
        for (path, kind) in all {
            match kind {
                None => write_header(&mut tar, &path, HeaderKind::Directory),
                Some(Kind::Link(target)) => write_header(&mut tar, &path, HeaderKind::Symlink { target }),
                Some(Kind::File(contents, executable)) => {
                    let (executable, size) = (*executable, contents.len() as u64);
                    write_header(&mut tar, &path, HeaderKind::File { executable, size });
                    tar.extend_from_slice(contents);
                    pad(&mut tar, size);
                }
            }
        }
        tar.extend_from_slice(&END);
        tar
    }

    fn unpacked(tar: &[u8]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { max_files: 10_000, max_bytes: 1 << 30 };
        let mut tarball = tempfile::tempfile().unwrap();
        tarball.write_all(tar).unwrap();
        let unpacking = Unpacking { tarball: &tarball, into: dir.path(), modes: Modes::default(), before: None };
        unpack(&unpacking, limits).unwrap();
        dir
    }

    fn file(contents: &[u8]) -> Kind {
        Kind::File(contents.to_vec(), false)
    }

    #[test]
    fn the_golden_tarballs_are_rebuilt() {
        for name in ["everything", "one-file"] {
            let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../shared/protocol/golden/{name}.tar"));
            let golden = std::fs::read(golden).unwrap();
            let rebuilt = rebuild(unpacked(&golden).path(), golden.len() as u64).unwrap();
            assert!(rebuilt == golden, "{name}");
        }
    }

    #[test]
    fn few_names_are_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b-c", "b/a", "b/d", "bb"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let names = |path: &[u8], most| ConfinedDir::open(dir.path()).unwrap().sorted_names(path, most);
        let (found, bytes) = names(b"", 1000).unwrap();
        assert_eq!(found, [&b"b-c"[..], b"b/", b"bb"]);
        assert!(names(b"", bytes).is_ok() && names(b"", bytes - 1).is_err());
        assert_eq!(names(b"b", bytes).unwrap().0, [b"a", b"d"]);
        let mut tar = RebuiltTar::open(dir.path(), 1 << 20).unwrap();
        let mut most = 0;
        while tar.next().unwrap() {
            tar.file = None;
            most = most.max(tar.folders.len());
        }
        assert_eq!((most, tar.folders.len()), (2, 0), "a folder is forgotten after its last entry");
    }

    #[test]
    fn changed_files_never_cost_more_memory_than_the_tar() {
        let before = tar(&BTreeMap::from([(b"a".to_vec(), file(&[1; 3000]))]));
        let size = before.len() as u64;
        let dir = unpacked(&before);
        let rebuilt = || rebuild(dir.path(), size);
        assert_eq!(rebuilt().unwrap(), before);
        std::fs::write(dir.path().join("a"), [2; 3000]).unwrap();
        assert_ne!(rebuilt().unwrap(), before);
        std::fs::File::create(dir.path().join("a")).unwrap().set_len(1 << 40).unwrap();
        assert!(rebuilt().is_err());
        std::fs::write(dir.path().join("a"), "").unwrap();
        for number in 0..20 {
            std::fs::write(dir.path().join(number.to_string()), "").unwrap();
        }
        assert!(rebuilt().is_err());
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert!(rebuilt().is_err());
        std::fs::create_dir(dir.path()).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(rebuilt().is_err());
    }

    fn path() -> impl Strategy<Value = Vec<u8>> {
        let component = prop_oneof!["[ab.-]{1,3}x", "l{120}[ab]"];
        prop::collection::vec(component, 1..4).prop_map(|components| components.join("/").into_bytes())
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![
            (prop::collection::vec(any::<u8>(), 0..1100), any::<bool>()).prop_map(|(bytes, x)| Kind::File(bytes, x)),
            prop::collection::vec(b'a'..b'c', 1..150).prop_map(Kind::Link),
        ]
    }

    proptest! {
        // Each case waits for the disk.
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn every_release_gives_its_tar(mut entries in prop::collection::btree_map(path(), kind(), 0..12)) {
            let paths: Vec<_> = entries.keys().cloned().collect();
            entries.retain(|path, _| !paths.iter().any(|other| other.starts_with(&[path, &b"/"[..]].concat())));
            let tar = tar(&entries);
            let dir = unpacked(&tar);
            prop_assert!(rebuild(dir.path(), tar.len() as u64).unwrap() == tar);
        }
    }
}
