//! What decides a tarball's bytes, as one small value: an equal key means an equal tarball, without building it.

use gix::Repository;
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::FORMAT;
use weir_shared::name::RepositoryName;

use super::codec::CODEC;
use super::{Selection, TarballError, folder};

/// The identity of everything that decides the bytes of a tarball and of its representations. Two commits with equal keys have the
/// same tarball; unequal keys may still lead to equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentKey([u8; 32]);

impl ContentKey {
    /// The raw 32 bytes, to store.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A stored key.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// The key of a selection at a commit. Reads one tree for each component of the folder's path: microseconds.
///
/// # Errors
/// When the folder is not there or the mirror is damaged.
pub fn content_key(
    repo: &Repository,
    commit: &CommitId,
    repository: &RepositoryName,
    selection: &Selection,
) -> Result<ContentKey, TarballError> {
    let folder = folder::find(repo, commit, &selection.folder)?;
    let [include, exclude] = selection.filters.texts();
    let mut key = KeyWriter(blake3::Hasher::new_derive_key("weir tarball content key v2"));
    key.field(repository.as_str().as_bytes());
    key.field(selection.folder.as_str().as_bytes());
    key.field(folder.tree.as_slice());
    key.field(&[u8::from(folder.export_ignored)]);
    key.list(folder.attribute_files.iter().flat_map(|(path, id)| [path.as_bytes(), id.as_slice()]));
    key.list(include.iter().map(|pattern| pattern.as_bytes()));
    key.list(exclude.iter().map(|pattern| pattern.as_bytes()));
    key.field(&FORMAT.to_le_bytes());
    key.field(CODEC.as_bytes());
    key.field(&[u8::from(selection.lfs), u8::from(selection.gzip)]);
    Ok(ContentKey(*key.0.finalize().as_bytes()))
}

/// Every field and every list with its length first, so that no two different inputs are written alike.
struct KeyWriter(blake3::Hasher);

impl KeyWriter {
    fn field(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }

    fn list<'a>(&mut self, items: impl Iterator<Item = &'a [u8]>) {
        let items: Vec<_> = items.collect();
        self.0.update(&(items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| self.field(item));
    }
}
