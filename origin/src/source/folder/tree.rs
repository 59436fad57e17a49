//! The content of a local folder, for a tarball.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::revision_id::RevisionId;

use crate::folder_path::FolderPath;
use crate::tarball::{Contents, KeyWriter, TarballError, Walk};

/// The content of a folder when it was read, sorted like a tarball.
#[derive(Debug, Clone)]
pub struct FolderTree(Arc<[(Vec<u8>, Node)]>);

#[derive(Debug, Clone)]
enum Node {
    Directory(FolderTree),
    File { file: DiskFile, size: u64, executable: bool },
    Symlink(Vec<u8>),
}

/// A file as it was when the folder was read.
#[derive(Debug, Clone)]
pub struct DiskFile {
    path: PathBuf,
    digest: ObjectDigest,
}

impl FolderTree {
    /// Reads a folder recursively.
    ///
    /// # Errors
    /// A file or folder cannot be read.
    pub fn read(folder: &Path) -> Result<Self, TarballError> {
        let failed = |error: io::Error| TarballError::object(folder.display(), error);
        let mut nodes = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
            let node = if kind.is_dir() {
                Node::Directory(Self::read(&path)?)
            } else if kind.is_symlink() {
                Node::Symlink(fs::read_link(&path).map_err(failed)?.into_os_string().into_vec())
            } else {
                let contents = fs::read(&path).map_err(failed)?;
                let executable = entry.metadata().map_err(failed)?.permissions().mode() & 0o100 != 0;
                let (size, digest) = (contents.len() as u64, ObjectDigest::of(&contents));
                Node::File { file: DiskFile { path, digest }, size, executable }
            };
            nodes.push((entry.file_name().into_vec(), node));
        }
        let slash = |node: &Node| if matches!(node, Node::Directory(_)) { &b"/"[..] } else { b"" };
        nodes.sort_by_key(|(name, node)| [name, slash(node)].concat());
        Ok(Self(nodes.into()))
    }

    /// The content of a folder below it.
    pub(super) fn below(&self, folder: &FolderPath) -> Result<Self, TarballError> {
        folder.components().try_fold(self.clone(), |tree, name| match tree.get(name.as_bytes()) {
            Some(Node::Directory(inner)) => Ok(inner.clone()),
            _ => Err(TarballError::FolderMissing(folder.to_string())),
        })
    }

    /// The hash of the content.
    pub(super) fn revision(&self) -> RevisionId {
        let hash = digest(&SHA256, &self.identity());
        let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("folder:{hex}").parse().expect("hex digits are an id")
    }

    /// Everything that determines the bytes of its tarball.
    pub(super) fn identity(&self) -> Vec<u8> {
        let mut identity = Vec::new();
        for (name, node) in self.0.iter() {
            let (kind, what) = match node {
                Node::Directory(inner) => ("directory", inner.identity()),
                Node::File { file, executable: true, .. } => ("executable", file.digest.as_bytes().to_vec()),
                Node::File { file, .. } => ("file", file.digest.as_bytes().to_vec()),
                Node::Symlink(target) => ("symlink", target.clone()),
            };
            for part in [kind.as_bytes(), name, &what] {
                identity.extend_from_slice(&(part.len() as u64).to_le_bytes());
                identity.extend_from_slice(part);
            }
        }
        identity
    }

    fn get(&self, name: &[u8]) -> Option<&Node> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, node)| node)
    }

    /// Whether the path, or one of its parents, is a symlink.
    fn leads_through_link(&self, path: &[u8]) -> bool {
        let mut names = path.splitn(2, |byte| *byte == b'/');
        match (names.next().and_then(|name| self.get(name)), names.next()) {
            (Some(Node::Symlink(_)), _) => true,
            (Some(Node::Directory(inner)), Some(rest)) => inner.leads_through_link(rest),
            _ => false,
        }
    }

    fn visit(&self, root: &Self, into: &mut Walk<'_, DiskFile>) -> Result<(), TarballError> {
        for (name, node) in self.0.iter() {
            into.count()?;
            if !into.visit(name, matches!(node, Node::Directory(_)), || false)? {
                continue;
            }
            match node {
                Node::Directory(inner) => {
                    into.enter();
                    inner.visit(root, into)?;
                    into.leave();
                }
                Node::File { file, size, executable } => into.file(file.clone(), *size, *executable)?,
                Node::Symlink(target) => into.symlink(target.clone(), |path| Ok(root.leads_through_link(path)))?,
            }
        }
        Ok(())
    }
}

impl Contents for FolderTree {
    type File = DiskFile;

    fn walk(&self, into: &mut Walk<'_, DiskFile>) -> Result<(), TarballError> {
        self.visit(self, into)
    }

    fn identify(file: &DiskFile, executable: bool, key: &mut KeyWriter) {
        key.field(&[u8::from(executable)]);
        key.field(file.digest.as_bytes());
    }

    fn read(&self, _: &[u8], DiskFile { path, digest }: &DiskFile, buffer: &mut Vec<u8>) -> Result<(), TarballError> {
        *buffer = fs::read(path).map_err(|error| TarballError::object(path.display(), error))?;
        let same = ObjectDigest::of(buffer) == *digest;
        same.then_some(()).ok_or_else(|| TarballError::object(path.display(), "it has changed"))
    }
}
