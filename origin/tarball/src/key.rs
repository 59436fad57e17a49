//! Content keys: two equal keys mean equal tarballs, without building them.

use weir_protocol::descriptor::FORMAT;
use weir_protocol::name::RepositoryName;

use super::Selection;
use super::codec::CODEC;

/// Identifies everything that determines the bytes of a tarball and its representations. Different keys may still
/// lead to equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentKey([u8; 32]);

impl ContentKey {
    /// The key of a selection. `identify` writes what determines the contents of its folder.
    pub fn new(repository: &RepositoryName, selection: &Selection, identify: impl FnOnce(&mut KeyWriter)) -> Self {
        let [include, exclude] = selection.filters.texts();
        let mut key = KeyWriter::new("weir tarball content key v2");
        key.field(repository.as_str().as_bytes());
        key.field(selection.folder.as_str().as_bytes());
        identify(&mut key);
        key.list(include.iter().map(|pattern| pattern.as_bytes()));
        key.list(exclude.iter().map(|pattern| pattern.as_bytes()));
        key.field(&FORMAT.to_le_bytes());
        key.field(CODEC.as_bytes());
        key.field(&[u8::from(selection.lfs), u8::from(selection.gzip)]);
        Self(key.finish())
    }

    /// The 32 bytes, for storage.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Restores a stored key.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Hashes every field and list with its length, so that different inputs never have the same encoding.
#[derive(Debug)]
pub struct KeyWriter(blake3::Hasher);

impl KeyWriter {
    /// `purpose` keeps keys of different kinds apart.
    pub fn new(purpose: &str) -> Self {
        Self(blake3::Hasher::new_derive_key(purpose))
    }

    /// Hashes a field with its length.
    pub fn field(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }

    /// Hashes a list of fields with its length.
    pub fn list<'a>(&mut self, items: impl Iterator<Item = &'a [u8]>) {
        let items: Vec<_> = items.collect();
        self.0.update(&(items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| self.field(item));
    }

    /// The key of everything that was written.
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}
