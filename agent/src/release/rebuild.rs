//! Rebuilds the tar of a release, byte for byte, from its files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{FileType, Mode, Stat};
use weir_protocol::tar_writer::{BLOCK, END, HeaderKind, padding, write_header};

use super::confined_dir::{ConfinedDir, is_type};

/// The tar of a release, which has at most `size` bytes: it is as large as that, unless somebody has changed the files.
///
/// # Errors
/// A file cannot be read, or the tar would be larger.
pub(super) fn rebuild(release: &Path, size: u64) -> io::Result<Vec<u8>> {
    let mut tar = Vec::with_capacity(usize::try_from(size).map_err(io::Error::other)?);
    RebuiltTar::open(release, size)?.read_to_end(&mut tar)?;
    Ok(tar)
}

/// The same as a stream: no more of it is in memory than the paths of all entries and one header.
pub(crate) struct RebuiltTar {
    dir: ConfinedDir,
    /// The paths of the entries that follow.
    paths: std::vec::IntoIter<Vec<u8>>,
    /// A header, padding or the end, of which `head_at` bytes were read.
    head: Vec<u8>,
    head_at: usize,
    /// The contents after the header: the file, and the bytes of it that are left.
    file: Option<(File, u64)>,
    padding: usize,
    /// Bytes that the tar may still have.
    left: u64,
    has_ended: bool,
}

impl RebuiltTar {
    pub(super) fn open(release: &Path, size: u64) -> io::Result<Self> {
        let mut dir = ConfinedDir::open(release)?;
        let paths = sorted_paths(&mut dir, size / BLOCK as u64)?.into_iter();
        let (head, file) = (Vec::new(), None);
        Ok(Self { dir, paths, head, head_at: 0, file, padding: 0, left: size, has_ended: false })
    }

    /// Begins the next entry, or the end; `false` after the end.
    fn next(&mut self) -> io::Result<bool> {
        self.head.clear();
        self.head_at = 0;
        let mut contents = 0;
        if let Some(name) = self.paths.next() {
            let path = name.strip_suffix(b"/").unwrap_or(&name);
            let stat = self.dir.stat(path)?.ok_or_else(changed)?;
            if is_type(&stat, FileType::Directory) {
                write_header(&mut self.head, &name, HeaderKind::Directory);
            } else if is_type(&stat, FileType::Symlink) {
                write_header(&mut self.head, &name, HeaderKind::Symlink { target: &self.dir.read_link(path)? });
            } else if is_type(&stat, FileType::RegularFile) {
                contents = u64::try_from(stat.st_size).map_err(io::Error::other)?;
                let (executable, size) = (is_executable(&stat), contents);
                write_header(&mut self.head, &name, HeaderKind::File { executable, size });
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
                    let read = file.by_ref().take(left).read(buffer)?;
                    if read == 0 {
                        return Err(changed());
                    }
                    self.file = Some((file, left - read as u64));
                    return Ok(read);
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

/// The paths of all entries in the order of format 1: by their bytes, those of directories with a `/` at the end.
fn sorted_paths(dir: &mut ConfinedDir, most: u64) -> io::Result<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    dir.walk(|path, is_directory| {
        paths.push(if is_directory { [path, b"/"].concat() } else { path.to_vec() });
        paths.len() as u64 <= most
    })?;
    if paths.len() as u64 > most {
        return Err(changed());
    }
    paths.sort_unstable();
    Ok(paths)
}

fn is_executable(stat: &Stat) -> bool {
    Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR)
}

fn changed() -> io::Error {
    io::Error::other("the files of the release were changed")
}

#[cfg(test)]
mod tests {
    use super::super::modes::Modes;
    use super::super::unpack::{Limits, unpack};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use weir_protocol::tar_writer::pad;

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
        unpack(tar, dir.path(), Limits { max_files: 10_000, max_bytes: 1 << 30 }, Modes::default()).unwrap();
        dir
    }

    fn file(contents: &[u8]) -> Kind {
        Kind::File(contents.to_vec(), false)
    }

    #[test]
    fn the_golden_tarballs_are_rebuilt() {
        for name in ["everything", "one-file"] {
            let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../shared/protocol/golden/{name}.tar"));
            let golden = std::fs::read(golden).unwrap();
            let rebuilt = rebuild(unpacked(&golden).path(), golden.len() as u64).unwrap();
            assert!(rebuilt == golden, "{name}");
        }
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
