//! Tarball contents from a mirror.

use std::io;

use gix::{ObjectId, Repository};
use weir_protocol::commit_id::CommitId;
use weir_protocol::entry_path;
use weir_tarball::{Contents, KeyWriter, PIECE_BYTES, Selection, TarballError, Walk};

use super::attributes::LineEnds;
use super::folder::read_blob;
use super::walk::walk;
use crate::lfs::{LfsObjects, Pointer};

/// A selection at a commit.
#[derive(Debug, Clone)]
pub struct GitTree<'a> {
    /// The mirror.
    pub repository: Repository,
    /// The commit.
    pub commit: CommitId,
    /// The folder, and whether LFS files are included.
    pub selection: &'a Selection,
    /// The LFS objects: needed to read files, but not to walk.
    pub lfs: Option<&'a LfsObjects>,
}

/// The location of a file's bytes.
#[derive(Debug)]
pub enum GitFile {
    /// In the mirror.
    Blob {
        /// The blob.
        id: ObjectId,
        /// The conversion of its line endings, if any.
        line_ends: Option<LineEnds>,
    },
    /// In the LFS objects.
    Lfs(Pointer),
}

impl Contents for GitTree<'_> {
    type File = GitFile;

    fn walk(&self, into: &mut Walk<'_, GitFile>) -> Result<(), TarballError> {
        walk(self, into)
    }

    fn identify(file: &GitFile, executable: bool, key: &mut KeyWriter) {
        match file {
            GitFile::Lfs(pointer) => {
                key.field(if executable { b"LFS executable" } else { b"LFS file" });
                key.field(pointer.oid.as_bytes());
            }
            GitFile::Blob { id, line_ends } => {
                key.field(if executable { b"executable" } else { b"file" });
                key.field(id.as_slice());
                key.field(line_ends.map_or("as it is", LineEnds::as_str).as_bytes());
            }
        }
    }

    fn read(&self, path: &[u8], file: &GitFile, buffer: &mut Vec<u8>) -> Result<(), TarballError> {
        match file {
            GitFile::Blob { id, line_ends } => {
                read_blob(&self.repository, *id, buffer)?;
                if let Some(rule) = line_ends
                    && let Some(converted) = rule.convert(buffer).map_err(|e| TarballError::object(id, e))?
                {
                    *buffer = converted;
                }
                Ok(())
            }
            GitFile::Lfs(pointer) => {
                let read = self.lfs.ok_or(std::io::ErrorKind::NotFound.into());
                read.and_then(|objects| objects.read(pointer, buffer)).map_err(|error| unreadable(path, &error))
            }
        }
    }

    fn read_in_pieces(
        &self,
        path: &[u8],
        file: &GitFile,
        take: &mut dyn FnMut(u64, Vec<u8>) -> Result<(), TarballError>,
    ) -> Result<(), TarballError> {
        let (pointer, objects) = match (file, self.lfs) {
            (GitFile::Lfs(pointer), Some(objects)) => (pointer, objects),
            // gix decodes a blob as a whole.
            _ => {
                let mut contents = Vec::new();
                self.read(path, file, &mut contents)?;
                return take(contents.len() as u64, contents);
            }
        };
        let mut take = |piece| take(pointer.size, piece).map_err(Stop::Taker);
        objects.read_in_pieces(pointer, PIECE_BYTES, &mut take).map_err(|stop| match stop {
            Stop::Disk(error) => unreadable(path, &error),
            Stop::Taker(error) => error,
        })
    }
}

/// Why an LFS object was not read to its end.
enum Stop {
    Disk(io::Error),
    Taker(TarballError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

fn unreadable(path: &[u8], error: &io::Error) -> TarballError {
    TarballError::Lfs { path: entry_path::percent_encode(path), cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ring::digest::{SHA256, digest};

    use super::*;
    use crate::lfs::LfsOid;

    #[test]
    fn a_large_lfs_object_is_read_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let (repository, selection) = (gix::init_bare(dir.path()).unwrap(), Selection::default());
        let contents: Vec<u8> = (0..5 << 19).map(|at: u32| (at % 251) as u8).collect();
        let hex: String = digest(&SHA256, &contents).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let pointer = Pointer { oid: LfsOid::from_hex(hex.as_bytes()).unwrap(), size: contents.len() as u64 };
        let objects = LfsObjects::of_mirror(dir.path());
        let mut writer = objects.create(&pointer).unwrap();
        writer.write(&contents).unwrap();
        writer.commit().unwrap();
        let commit = "a".repeat(40).parse().unwrap();
        let tree = GitTree { repository, commit, selection: &selection, lfs: Some(&objects) };
        let read = |stops: bool| {
            let mut pieces = Vec::new();
            let read = tree.read_in_pieces(b"x", &GitFile::Lfs(pointer), &mut |size, piece| {
                assert_eq!(size, pointer.size);
                pieces.push(piece);
                if stops { Err(TarballError::Interrupted) } else { Ok(()) }
            });
            read.map(|()| pieces)
        };
        let pieces = read(false).unwrap();
        assert_eq!((pieces.len(), pieces.concat()), (3, contents.clone()));
        assert!(matches!(read(true), Err(TarballError::Interrupted)));
        let path = dir.path().join("lfs/objects").join(&hex[..2]).join(&hex[2..4]).join(&hex);
        fs::write(path, vec![0; contents.len()]).unwrap();
        let error = read(false).unwrap_err();
        assert!(matches!(&error, TarballError::Lfs { path, .. } if path == "x"), "{error}");
    }
}
