//! Tarball contents from a mirror.

use gix::{ObjectId, Repository};
use weir_protocol::commit_id::CommitId;
use weir_protocol::entry_path;
use weir_tarball::{Contents, KeyWriter, Selection, TarballError, Walk};

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
                read.and_then(|objects| objects.read(pointer, buffer)).map_err(|error| TarballError::Lfs {
                    path: entry_path::percent_encode(path),
                    cause: error.to_string(),
                })
            }
        }
    }
}
