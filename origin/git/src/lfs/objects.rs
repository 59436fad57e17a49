//! The LFS objects of a mirror, in the layout of Git LFS: `<mirror>/lfs/objects/ab/cd/<oid>`. They are removed with it.
//!
//! An object gets its name after its bytes were verified against its pointer and synced to the disk. All functions
//! block.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ring::digest::{Context, SHA256, digest};
use tempfile::NamedTempFile;
use weir_upstream::without_path;

use super::{LfsOid, Pointer};

/// The number and size of objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LfsUsage {
    /// The number of objects.
    pub objects: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

impl LfsUsage {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The LFS objects of a mirror.
#[derive(Debug, Clone)]
pub struct LfsObjects {
    root: PathBuf,
}

impl LfsObjects {
    /// The objects of the mirror in a directory. Folders are created when they are needed.
    pub fn of_mirror(mirror: &Path) -> Self {
        Self { root: mirror.join("lfs") }
    }

    fn path(&self, oid: &LfsOid) -> PathBuf {
        let hex = oid.to_string();
        self.objects().join(&hex[..2]).join(&hex[2..4]).join(&hex)
    }

    fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    /// Whether an object with that id and size is stored. Its bytes are verified when it is read.
    pub fn contains(&self, pointer: &Pointer) -> bool {
        fs::metadata(self.path(&pointer.oid)).is_ok_and(|found| found.is_file() && found.len() == pointer.size)
    }

    /// Reads an object into `buffer`, whose former contents are lost. A corrupt object is removed, so that it is
    /// fetched again.
    ///
    /// # Errors
    /// The object is missing, unreadable, or was corrupt (`InvalidData`).
    pub fn read(&self, pointer: &Pointer, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        let path = self.path(&pointer.oid);
        File::open(&path)?.take(pointer.size + 1).read_to_end(buffer)?;
        if buffer.len() as u64 == pointer.size && digest(&SHA256, buffer).as_ref() == pointer.oid.as_bytes() {
            return Ok(());
        }
        fs::remove_file(&path)?;
        Err(io::Error::new(io::ErrorKind::InvalidData, "the stored bytes do not match the object's SHA-256"))
    }

    /// All objects.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub(crate) fn list(&self) -> io::Result<Vec<Pointer>> {
        let mut found = Vec::new();
        visit_files(self.objects(), &mut |path, data| {
            let oid = path.file_name().and_then(|name| LfsOid::from_hex(name.as_encoded_bytes()));
            found.extend(oid.map(|oid| Pointer { oid, size: data.len() }));
            Ok(())
        })?;
        Ok(found)
    }

    /// Reads an object in pieces, whose bytes are not verified before its end. A corrupt object is removed.
    ///
    /// # Errors
    /// The object is missing, unreadable, or was corrupt (`InvalidData`); or `take` fails.
    pub(crate) fn read_in_pieces<E: From<io::Error>>(
        &self,
        pointer: &Pointer,
        piece: u64,
        take: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = self.path(&pointer.oid);
        let (mut file, mut hash) = (File::open(&path)?, Context::new(&SHA256));
        let mut size = 0;
        loop {
            let mut bytes = Vec::new();
            if Read::by_ref(&mut file).take(piece).read_to_end(&mut bytes)? == 0 {
                break;
            }
            size += bytes.len() as u64;
            hash.update(&bytes);
            take(bytes)?;
        }
        if size == pointer.size && hash.finish().as_ref() == pointer.oid.as_bytes() {
            return Ok(());
        }
        fs::remove_file(&path)?;
        Err(io::Error::new(io::ErrorKind::InvalidData, "the stored bytes do not match the object's SHA-256").into())
    }

    /// Creates a temporary file for an object.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(&self, pointer: &Pointer) -> io::Result<LfsWriter> {
        let temporary = self.root.join("tmp");
        fs::create_dir_all(&temporary)?;
        let file = NamedTempFile::new_in(temporary).map_err(|error| without_path(&error))?;
        let path = self.path(&pointer.oid);
        let (file, hash) = (BufWriter::with_capacity(256 << 10, file), Context::new(&SHA256));
        Ok(LfsWriter { pointer: *pointer, path, file, hash, received: 0 })
    }

    /// The number and size of all objects.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn usage(&self) -> io::Result<LfsUsage> {
        let mut usage = LfsUsage::default();
        visit_files(self.objects(), &mut |_, data| {
            usage.add(data.len());
            Ok(())
        })?;
        Ok(usage)
    }

    /// Removes all objects except `needed` and those modified after `before`. Returns the removed and the remaining
    /// amount.
    ///
    /// # Errors
    /// A file cannot be read or removed; others may be removed already.
    pub fn remove_except(&self, needed: &HashSet<LfsOid>, before: SystemTime) -> io::Result<(LfsUsage, LfsUsage)> {
        let (mut removed, mut remaining) = (LfsUsage::default(), LfsUsage::default());
        visit_files(self.objects(), &mut |path, data| {
            let name = path.file_name().and_then(|name| LfsOid::from_hex(name.as_encoded_bytes()));
            let old = data.modified()? <= before;
            if old && name.is_none_or(|oid| !needed.contains(&oid)) {
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => removed.add(data.len()),
                }
            } else {
                remaining.add(data.len());
            }
            Ok(())
        })?;
        Ok((removed, remaining))
    }

    /// Moves the objects to a mirror without any. After a failure they are fetched again.
    pub fn move_to(&self, other: &Self) {
        match fs::rename(&self.root, &other.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "the LFS objects of a replaced mirror cannot be moved to the new one");
            }
            _ => {}
        }
    }

    /// Removes temporary files of killed processes: those not modified after `before`.
    ///
    /// # Errors
    /// A file cannot be read or removed.
    pub fn remove_partial(&self, before: SystemTime) -> io::Result<()> {
        visit_files(self.root.join("tmp"), &mut |path, data| {
            if data.modified()? <= before { fs::remove_file(path) } else { Ok(()) }
        })
    }
}

/// Visits all files below a folder, which may be missing.
fn visit_files(folder: PathBuf, visit: &mut dyn FnMut(&Path, &Metadata) -> io::Result<()>) -> io::Result<()> {
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                // Another thread removed the file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(data) if data.is_dir() => folders.push(entry.path()),
                Ok(data) => visit(&entry.path(), &data)?,
            }
        }
    }
    Ok(())
}

/// Writes an object. Dropped without [`LfsWriter::commit`], it removes its temporary file.
pub struct LfsWriter {
    pointer: Pointer,
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    hash: Context,
    received: u64,
}

/// Why an object was not stored.
#[derive(Debug, thiserror::Error)]
pub enum LfsWriteError {
    /// The size differs from the pointer's.
    #[error("it has {received} bytes, but its pointer says {expected}")]
    Length {
        /// The received bytes, up to the first excess part.
        received: u64,
        /// The size in the pointer.
        expected: u64,
    },
    /// The digest differs from the pointer's.
    #[error("its SHA-256 differs from the one in its pointer")]
    Digest,
    /// The object cannot be written.
    #[error("it cannot be stored: {0}")]
    Store(#[from] io::Error),
}

impl LfsWriter {
    /// Writes the next bytes.
    ///
    /// # Errors
    /// The object is larger than its pointer says, or the disk fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), LfsWriteError> {
        self.received += bytes.len() as u64;
        if self.received > self.pointer.size {
            return Err(LfsWriteError::Length { received: self.received, expected: self.pointer.size });
        }
        self.hash.update(bytes);
        Ok(self.file.write_all(bytes).map_err(|error| without_path(&error))?)
    }

    /// Verifies the object, syncs it and gives it its name.
    ///
    /// # Errors
    /// The object does not match its pointer, or the disk fails.
    pub fn commit(self) -> Result<(), LfsWriteError> {
        if self.received != self.pointer.size {
            return Err(LfsWriteError::Length { received: self.received, expected: self.pointer.size });
        }
        if self.hash.finish().as_ref() != self.pointer.oid.as_bytes() {
            return Err(LfsWriteError::Digest);
        }
        let file = self.file.into_inner().map_err(|error| without_path(error.error()))?;
        file.as_file().sync_all()?;
        let folder = self.path.parent().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        fs::create_dir_all(folder)?;
        file.persist(&self.path).map_err(|error| without_path(&error.error))?;
        File::open(folder)?.sync_all()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(contents: &[u8]) -> Pointer {
        let hex: String = digest(&SHA256, contents).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Pointer { oid: LfsOid::from_hex(hex.as_bytes()).unwrap(), size: contents.len() as u64 }
    }

    fn receive(objects: &LfsObjects, pointer: &Pointer, parts: &[&[u8]]) -> Result<(), LfsWriteError> {
        let mut writer = objects.create(pointer)?;
        parts.iter().try_for_each(|part| writer.write(part))?;
        writer.commit()
    }

    #[test]
    fn an_object_is_stored_only_if_it_matches_its_pointer() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LfsObjects::of_mirror(dir.path());
        let wanted = pointer(b"the file itself");
        let length = |error| matches!(error, LfsWriteError::Length { expected: 15, .. });
        assert!(length(receive(&objects, &wanted, &[b"the file"]).unwrap_err()));
        assert!(length(receive(&objects, &wanted, &[b"the file itself", b"!"]).unwrap_err()));
        let other = receive(&objects, &wanted, &[b"the file itsElf"]).unwrap_err();
        assert!(matches!(other, LfsWriteError::Digest));
        assert!(!objects.contains(&wanted));
        assert_eq!(fs::read_dir(dir.path().join("lfs/tmp")).unwrap().count(), 0);

        receive(&objects, &wanted, &[b"the file", b"", b" itself"]).unwrap();
        assert!(objects.contains(&wanted) && !objects.contains(&Pointer { size: 14, ..wanted }));
        let mut buffer = b"something".to_vec();
        objects.read(&wanted, &mut buffer).unwrap();
        assert_eq!(buffer, b"the file itself");
        receive(&objects, &pointer(b""), &[]).unwrap();
        objects.read(&pointer(b""), &mut buffer).unwrap();
        assert_eq!(buffer, b"");
    }

    #[test]
    fn a_corrupt_object_is_removed_when_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LfsObjects::of_mirror(dir.path());
        let wanted = pointer(b"the file itself");
        for rotten in [&b"the file itsElf"[..], b"the file", b"the file itself and more"] {
            receive(&objects, &wanted, &[b"the file itself"]).unwrap();
            fs::write(objects.path(&wanted.oid), rotten).unwrap();
            let error = objects.read(&wanted, &mut Vec::new()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(!objects.contains(&wanted));
        }
    }

    #[test]
    fn unneeded_objects_are_removed_unless_they_are_new() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LfsObjects::of_mirror(dir.path());
        assert_eq!(objects.usage().unwrap(), LfsUsage::default());
        let (old, new) = (pointer(b"old"), pointer(b"the new one"));
        receive(&objects, &old, &[b"old"]).unwrap();
        receive(&objects, &new, &[b"the new one"]).unwrap();
        let both = objects.usage().unwrap();
        assert_eq!(both, LfsUsage { objects: 2, bytes: 14 });
        let needed = HashSet::from([new.oid]);
        assert_eq!(objects.remove_except(&needed, SystemTime::UNIX_EPOCH).unwrap(), (LfsUsage::default(), both));
        let (removed, remaining) = objects.remove_except(&needed, SystemTime::now()).unwrap();
        assert_eq!((removed, remaining), (LfsUsage { objects: 1, bytes: 3 }, LfsUsage { objects: 1, bytes: 11 }));
        assert!(!objects.contains(&old) && objects.contains(&new));
    }

    #[test]
    fn temporary_files_of_a_killed_process_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LfsObjects::of_mirror(dir.path());
        objects.remove_partial(SystemTime::now()).unwrap();
        std::mem::forget(objects.create(&pointer(b"x")).unwrap());
        let left = || fs::read_dir(dir.path().join("lfs/tmp")).unwrap().count();
        objects.remove_partial(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(left(), 1, "a download may still write to it");
        objects.remove_partial(SystemTime::now()).unwrap();
        assert_eq!(left(), 0);
    }
}
