//! Takes files that have not changed from the release before, instead of writing them again.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::confined_dir::{ConfinedDir, is_type};
use crate::modes::{Modes, ReleaseModes};
use crate::tar_reader::TarFile;

/// The bytes that are compared at a time.
const PART: usize = 64 << 10;

/// What a new release does with files that the release before has with the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unchanged {
    /// `link`. For a service with `check` or `exec`, and with `group_write`: `clone` where the file system can, elsewhere `copy`.
    #[default]
    Auto,
    /// They share their blocks until one is changed (btrfs, xfs with reflinks). Where the file system cannot: `copy`.
    Clone,
    /// They are hard links. A program that writes into one changes it in all releases, the current one included.
    Link,
    /// They are written again.
    Copy,
}

impl Unchanged {
    fn clones(self) -> bool {
        matches!(self, Self::Auto | Self::Clone)
    }

    fn links(self, others_write: bool) -> bool {
        self == Self::Link || self == Self::Auto && !others_write
    }
}

/// The release before, and what may be done with its files.
#[derive(Clone, Copy)]
pub(crate) struct Before<'a> {
    pub release: &'a Path,
    pub unchanged: Unchanged,
    /// Whether other programs may write into releases.
    pub others_write: bool,
}

/// The release before, while a writer unpacks files of a tarball.
pub(crate) struct ReleaseBefore<'a> {
    tarball: &'a File,
    dir: ConfinedDir,
    clones: bool,
    links: bool,
    /// What the files of the new release have.
    modes: ReleaseModes,
    owner: (u32, u32),
    buffers: Box<[[u8; PART]; 2]>,
}

impl<'a> ReleaseBefore<'a> {
    /// `into`: the new directory. `None`: nothing is taken of the release before.
    pub(crate) fn open(tarball: &'a File, before: &Before<'_>, into: &Path, modes: Modes) -> Option<Self> {
        let Before { release, unchanged, others_write } = *before;
        let (clones, links) = (unchanged.clones(), unchanged.links(others_write));
        if !clones && !links {
            return None;
        }
        let new = ConfinedDir::open(into).and_then(|dir| dir.stat_root()).ok()?;
        let (modes, owner) = (modes.of_release(&new)?, (new.st_uid, new.st_gid));
        let dir = ConfinedDir::open(release).ok()?;
        Some(Self { tarball, dir, clones, links, modes, owner, buffers: Box::new([[0; PART]; 2]) })
    }

    /// Makes a file in `into` of the one with the same path, if it has the same bytes. False: it is to be written. An old file that
    /// cannot be read is not the same.
    ///
    /// # Errors
    /// Nothing can be made with this name.
    pub(crate) fn take(&mut self, into: &mut ConfinedDir, file: &TarFile) -> io::Result<bool> {
        let TarFile { ref path, executable, position, size } = *file;
        let Ok(old) = self.dir.open_file(path) else { return Ok(false) };
        let Ok(stat) = rustix::fs::fstat(&old) else { return Ok(false) };
        let may_link =
            self.links && self.modes.is_of_file(&stat, executable) && (stat.st_uid, stat.st_gid) == self.owner;
        let is_candidate = is_type(&stat, FileType::RegularFile) && u64::try_from(stat.st_size) == Ok(size);
        if !is_candidate || !(self.clones || may_link) || !self.is_same(&old, position, size).unwrap_or(false) {
            return Ok(false);
        }
        // A link costs less than a clone, which is a new file, also where both can be had.
        let is_made = (may_link && self.link_file(into, path, &stat)?)
            || (self.clones && self.clone_file(into, path, executable, &old)?);
        if !is_made {
            return Ok(false);
        }
        // Nobody has written to it meanwhile.
        let written = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        if rustix::fs::fstat(&old).is_ok_and(|now| written(&now) == written(&stat)) {
            return Ok(true);
        }
        into.remove_file(path)?;
        Ok(false)
    }

    fn clone_file(&mut self, into: &mut ConfinedDir, path: &[u8], executable: bool, old: &File) -> io::Result<bool> {
        let Err(error) = into.clone_file(path, executable, old) else { return Ok(true) };
        match Errno::from_io_error(&error) {
            Some(Errno::EXIST) => return Err(error),
            // This file system cannot: it is not tried again.
            Some(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOSYS | Errno::NOTTY) => self.clones = false,
            // This file cannot: it is written.
            _ => {}
        }
        Ok(false)
    }

    /// Makes a link of the file with this `stat`, and not of one that was put in its place meanwhile.
    fn link_file(&mut self, into: &mut ConfinedDir, path: &[u8], stat: &Stat) -> io::Result<bool> {
        match into.link_file(path, &mut self.dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            // It has the most links that it can have, is protected (proc(5), fs.protected_hardlinks), or this file system has none.
            Err(_) => return Ok(false),
            Ok(()) => {}
        }
        if into.stat(path)?.is_some_and(|made| (made.st_dev, made.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Ok(true);
        }
        into.remove_file(path)?;
        Ok(false)
    }

    fn is_same(&mut self, old: &File, position: u64, size: u64) -> io::Result<bool> {
        let [new, before] = &mut *self.buffers;
        let (mut old, mut at) = (old.take(size), 0);
        while at < size {
            let length = usize::try_from(size - at).unwrap_or(PART).min(PART);
            self.tarball.read_exact_at(&mut new[..length], position + at)?;
            old.read_exact(&mut before[..length])?;
            if new[..length] != before[..length] {
                return Ok(false);
            }
            at += length as u64;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::unpack::{Limits, unpack};
    use crate::writers::Unpacking;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;
    use weir_protocol::tar_writer::{END, HeaderKind, pad, write_header};

    /// Files by name, with their executable bit.
    type Files = BTreeMap<String, (Vec<u8>, bool)>;

    fn files(entries: &[(&str, &str)]) -> Files {
        entries.iter().map(|(name, contents)| ((*name).to_owned(), (contents.as_bytes().to_vec(), false))).collect()
    }

    struct Releases(tempfile::TempDir);

    impl Releases {
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Unpacks a release, and checks it.
        fn unpack(&self, name: &str, files: &Files, before: Option<&str>, unchanged: Unchanged, group_write: bool) {
            let (modes, limits) = (Modes { group_write }, Limits { max_files: 1000, max_bytes: 1 << 30 });
            let mut bytes = Vec::new();
            for (path, (contents, executable)) in files {
                let (executable, size) = (*executable, contents.len() as u64);
                write_header(&mut bytes, path.as_bytes(), HeaderKind::File { executable, size });
                bytes.extend_from_slice(contents);
                pad(&mut bytes, size);
            }
            bytes.extend_from_slice(&END);
            fs::write(self.path("tar"), &bytes).unwrap();
            let (tarball, into) = (File::open(self.path("tar")).unwrap(), self.path(name));
            crate::tree::make_directory(&into, modes.directory()).unwrap();
            let release = before.map(|of| self.path(of));
            let before = release.as_deref().map(|release| Before { release, unchanged, others_write: group_write });
            let unpacking = Unpacking { tarball: &tarball, into: &into, modes, before };
            assert!(unpack(&unpacking, limits).unwrap().is_on_disk);
            assert_eq!(compare(&bytes[..], &into, modes).unwrap(), None);
        }

        fn inode(&self, path: &str) -> u64 {
            fs::symlink_metadata(self.path(path)).unwrap().ino()
        }
    }

    fn releases() -> Releases {
        Releases(tempfile::tempdir().unwrap())
    }

    #[test]
    fn only_a_file_with_the_same_bytes_and_mode_is_linked() {
        let (releases, modes) = (releases(), false);
        let mut one = files(&[("a/same", "1"), ("a/changed", "1"), ("longer", "1"), ("mode", "1"), ("edited", "1")]);
        one.extend(files(&[("link", "1"), ("narrowed", "1"), ("empty", ""), ("gone/in", "1")]));
        let large = vec![7; 3 * PART + 1];
        one.extend([("large".to_owned(), (large.clone(), true)), ("large-end".to_owned(), (large, false))]);
        releases.unpack("one", &one, None, Unchanged::Link, modes);
        let mut two = one.clone();
        two.insert("a/changed".to_owned(), (b"2".to_vec(), false));
        two.insert("longer".to_owned(), (b"12".to_vec(), false));
        two.insert("mode".to_owned(), (b"1".to_vec(), true));
        two.get_mut("large-end").unwrap().0[3 * PART] = 8;
        two.extend([("gone".to_owned(), two["gone/in"].clone())]);
        two.remove("gone/in");
        // Somebody has changed the release before, with the same sizes.
        fs::write(releases.path("one/edited"), "2").unwrap();
        fs::rename(releases.path("one/link"), releases.path("one/renamed")).unwrap();
        symlink("renamed", releases.path("one/link")).unwrap();
        fs::set_permissions(releases.path("one/narrowed"), fs::Permissions::from_mode(0o600)).unwrap();
        releases.unpack("two", &two, Some("one"), Unchanged::Link, modes);
        let is_linked = |name: &&str| {
            fs::symlink_metadata(releases.path("one").join(name)).is_ok()
                && releases.inode(&format!("one/{name}")) == releases.inode(&format!("two/{name}"))
        };
        let linked: Vec<_> = two.keys().map(String::as_str).filter(is_linked).collect();
        assert_eq!(linked, ["a/same", "empty", "large"]);
        // A third one, of the second.
        releases.unpack("three", &two, Some("two"), Unchanged::Auto, modes);
        assert_eq!(releases.inode("three/a/same"), releases.inode("one/a/same"));
    }

    #[test]
    fn files_that_others_may_write_are_not_linked_by_themselves() {
        let (releases, modes) = (releases(), true);
        let one = files(&[("a", "1")]);
        releases.unpack("one", &one, None, Unchanged::Auto, modes);
        for (name, unchanged, is_linked) in
            [("auto", Unchanged::Auto, false), ("copy", Unchanged::Copy, false), ("link", Unchanged::Link, true)]
        {
            releases.unpack(name, &one, Some("one"), unchanged, modes);
            assert_eq!(releases.inode("one/a") == releases.inode(&format!("{name}/a")), is_linked, "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_release_is_its_tarball_whatever_was_before(
            one in prop::collection::btree_map("[ab]/[abc]", (prop::collection::vec(0u8..2, 0..3), any::<bool>()), 0..8),
            two in prop::collection::btree_map("[ab]/[abc]", (prop::collection::vec(0u8..2, 0..3), any::<bool>()), 0..8),
            group_write: bool,
        ) {
            let (releases, modes) = (releases(), group_write);
            releases.unpack("one", &one, None, Unchanged::Auto, modes);
            for (name, unchanged) in [("a", Unchanged::Auto), ("b", Unchanged::Clone), ("c", Unchanged::Link)] {
                releases.unpack(name, &two, Some("one"), unchanged, modes);
            }
        }
    }
}
