//! What decides a tarball's bytes, as one small value: an equal key means an equal tarball, without building it.

use weir_protocol::descriptor::FORMAT;
use weir_protocol::name::RepositoryName;

use super::Selection;
use super::codec::CODEC;

/// The identity of everything that decides the bytes of a tarball and of its representations. Two revisions with equal keys
/// have the same tarball; unequal keys may still lead to equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentKey([u8; 32]);

impl ContentKey {
    /// The key of a selection. `identify` writes what else decides the contents of its folder.
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

    /// The raw 32 bytes, to store.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A stored key.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Writes every field and every list with its length first, so that no two different inputs are written alike.
#[derive(Debug)]
pub struct KeyWriter(blake3::Hasher);

impl KeyWriter {
    pub(super) fn new(purpose: &str) -> Self {
        Self(blake3::Hasher::new_derive_key(purpose))
    }

    /// Writes a field.
    pub fn field(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }

    /// Writes a list of fields.
    pub fn list<'a>(&mut self, items: impl Iterator<Item = &'a [u8]>) {
        let items: Vec<_> = items.collect();
        self.0.update(&(items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| self.field(item));
    }

    pub(super) fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}
