//! What builds found, remembered under the keys of their contents, so that the same is not built again.

use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};
use weir_shared::descriptor::Generation;
use weir_shared::digest::BlobDigest;
use weir_shared::name::ServiceName;

use super::decision::Content;
use super::inspection::parse_content;
use super::rows::{CURRENT, parse};
use super::state::{State, StateError};
use crate::tarball::ContentKey;

type Bytes32 = &'static [u8; 32];

/// Content key → what a build found, as JSON.
pub(super) const CONTENT: TableDefinition<'_, Bytes32, &[u8]> = TableDefinition::new("content_v1");
/// Blob, content key → nothing: under which keys a blob is remembered.
const KEYS: TableDefinition<'_, (Bytes32, Bytes32), ()> = TableDefinition::new("keys_v1");
/// Service → the key of what is current, and the generation that is.
const CURRENT_KEYS: TableDefinition<'_, &str, (Bytes32, u64)> = TableDefinition::new("current_keys_v1");

/// Keys under which one blob is remembered, at the most. With patterns in a busy repository each commit has another key
/// and the same blob.
const KEYS_OF_A_BLOB: usize = 16;

/// The tables of what builds found, while they are changed.
pub(super) struct Contents<'t> {
    contents: Table<'t, Bytes32, &'static [u8]>,
    keys: Table<'t, (Bytes32, Bytes32), ()>,
    current: Table<'t, &'static str, (Bytes32, u64)>,
}

impl<'t> Contents<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, StateError> {
        Ok(Self {
            contents: transaction.open_table(CONTENT)?,
            keys: transaction.open_table(KEYS)?,
            current: transaction.open_table(CURRENT_KEYS)?,
        })
    }

    /// Remembers what a build found. Of too many keys of a blob any go: what is current is known without.
    pub(super) fn remember(&mut self, key: &ContentKey, content: &Content) -> Result<(), StateError> {
        let json = serde_json::to_vec(content).expect("content is plain data");
        self.contents.insert(key.as_bytes(), json.as_slice())?;
        self.keys.insert((content.blob.as_bytes(), key.as_bytes()), ())?;
        let others = self.keys_of(&content.blob)?.into_iter().filter(|other| other != key.as_bytes());
        for other in others.skip(KEYS_OF_A_BLOB - 1) {
            self.forget(&content.blob, &other)?;
        }
        Ok(())
    }

    /// This generation of a service is of the content of this key.
    pub(super) fn is_at(&mut self, service: &str, key: &ContentKey, generation: Generation) -> Result<(), StateError> {
        self.current.insert(service, (key.as_bytes(), generation))?;
        Ok(())
    }

    /// What is current of a service goes on under another generation.
    pub(super) fn goes_on(&mut self, service: &str, from: Generation, to: Generation) -> Result<(), StateError> {
        let key = self.current.get(service)?.filter(|row| row.value().1 == from).map(|row| *row.value().0);
        if let Some(key) = key {
            self.current.insert(service, (&key, to))?;
        }
        Ok(())
    }

    /// A service is not published any more.
    pub(super) fn retire(&mut self, service: &str) -> Result<(), StateError> {
        self.current.remove(service)?;
        Ok(())
    }

    /// Forgets what was built into a blob that is gone.
    pub(super) fn forget_blob(&mut self, blob: &BlobDigest) -> Result<(), StateError> {
        self.keys_of(blob)?.iter().try_for_each(|key| self.forget(blob, key))
    }

    fn keys_of(&self, blob: &BlobDigest) -> Result<Vec<[u8; 32]>, StateError> {
        let mut keys = Vec::new();
        for row in self.keys.range((blob.as_bytes(), &[0; 32])..=(blob.as_bytes(), &[0xff; 32]))? {
            keys.push(*row?.0.value().1);
        }
        Ok(keys)
    }

    fn forget(&mut self, blob: &BlobDigest, key: &[u8; 32]) -> Result<(), StateError> {
        self.keys.remove((blob.as_bytes(), key))?;
        let content = self.contents.get(key)?.and_then(|row| parse_content(row.value()).ok());
        if content.is_none_or(|content| content.blob == *blob) {
            self.contents.remove(key)?;
        }
        Ok(())
    }
}

impl State {
    /// What was built under this key before, for whichever service, or is current of this one.
    pub(crate) fn content(&self, service: &ServiceName, key: &ContentKey) -> Result<Option<Content>, StateError> {
        self.read(|transaction| {
            let row = transaction.open_table(CONTENT)?.get(key.as_bytes())?;
            match row.and_then(|row| parse_content(row.value()).ok()) {
                Some(content) => Ok(Some(content)),
                None => current(transaction, service.as_str(), key),
            }
        })
    }
}

/// What a service is at, if it is of this key. The generation tells whether the row is of what is current: a version of
/// the program that keeps no such rows may have published since.
fn current(transaction: &ReadTransaction, service: &str, key: &ContentKey) -> Result<Option<Content>, StateError> {
    let Some(row) = transaction.open_table(CURRENT_KEYS)?.get(service)? else { return Ok(None) };
    let (of, generation) = row.value();
    if of != key.as_bytes() {
        return Ok(None);
    }
    let current = transaction.open_table(CURRENT)?.get(service)?;
    let current = current.and_then(|row| parse(service, row.value()).ok());
    let current = current.filter(|current| current.publication().generation == generation);
    Ok(current.as_ref().and_then(Content::of))
}
