//! The durable state of publications: one redb file. All of this blocks.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};
use weir_shared::descriptor::{Descriptor, DescriptorError, Generation, MAX_DESCRIPTOR_BYTES, Representation};
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::name::ServiceName;

use super::decision::{self, Content, Decision, Statement};
use super::history::{self, Entry, HISTORY, History, Why};
use super::pin::PINS;
use super::retention::{self, Superseded};
use crate::signing::Signer;
use crate::tarball::ContentKey;

/// Service and digest.
type VersionKey = (&'static str, &'static [u8; 32]);
/// Unix milliseconds and a descriptor's bytes.
type VersionValue = (u64, &'static [u8]);

/// Service → the bytes of its descriptor.
pub(super) const CURRENT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("current_v1");
/// Service → the last generation ever published. Stays when the service goes.
const GENERATION: TableDefinition<'_, &str, u64> = TableDefinition::new("generation_v1");
/// Service, digest → when it was superseded (Unix milliseconds), and its last descriptor's bytes.
pub(super) const SUPERSEDED: TableDefinition<'_, VersionKey, VersionValue> = TableDefinition::new("history_v1");
/// Content key → what a build found, as JSON.
const CONTENT: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("content_v1");

/// The publications of an origin.
#[derive(Debug)]
pub(crate) struct State {
    database: Database,
    pub(super) signer: Arc<Signer>,
}

/// The state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the state cannot be read or written: {0}")]
    Database(Box<redb::Error>),
    #[error(
        "the descriptor would have {0} bytes, more than the limit of {MAX_DESCRIPTOR_BYTES}: fewer paths must be left out"
    )]
    DescriptorTooLarge(usize),
}

impl<E: Into<redb::Error>> From<E> for StateError {
    fn from(error: E) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

/// What a statement changed.
#[derive(Debug)]
pub(crate) enum Change {
    /// Nothing.
    None,
    /// The representations, under the same generation.
    Revised(Descriptor),
    /// A new generation.
    Published(Descriptor),
}

/// What is stated of a service.
#[derive(Debug)]
pub(crate) struct Stated {
    pub(crate) statement: Statement,
    /// The key of the content.
    pub(crate) key: ContentKey,
    pub(crate) content: Content,
}

/// A descriptor that names a blob.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) descriptor: Descriptor,
    /// The service's current one, not a superseded one.
    pub(crate) current: bool,
}

impl State {
    /// Opens the file, or makes a new one.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let database = Database::create(path)?;
        let transaction = database.begin_write()?;
        transaction.open_table(CURRENT)?;
        transaction.open_table(GENERATION)?;
        transaction.open_table(SUPERSEDED)?;
        transaction.open_table(CONTENT)?;
        transaction.open_table(HISTORY)?;
        transaction.open_table(PINS)?;
        transaction.commit()?;
        Ok(Self { database, signer: Arc::default() })
    }

    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    /// The current descriptors of all services.
    pub(crate) fn all_current(&self) -> Result<Vec<(ServiceName, Descriptor)>, StateError> {
        let table = self.database.begin_read()?.open_table(CURRENT)?;
        let mut found = Vec::new();
        for row in table.iter()? {
            let (service, bytes) = row?;
            match (service.value().parse(), parse(bytes.value())) {
                (Ok(service), Ok(descriptor)) => found.push((service, descriptor)),
                (_, Err(error)) => {
                    // A newer version wrote it, perhaps. Its generation stands in a table of its own.
                    tracing::warn!(service = service.value(), %error, "a stored descriptor is not used");
                }
                (Err(_), _) => {}
            }
        }
        Ok(found)
    }

    /// The descriptor of a service's digest, if it is the current one or a retained one.
    pub(crate) fn version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Option<Descriptor>, StateError> {
        let transaction = self.database.begin_read()?;
        if let Some(bytes) = transaction.open_table(CURRENT)?.get(service.as_str())?
            && let Ok(current) = parse(bytes.value())
            && current.publication().digest == *digest
        {
            return Ok(Some(current));
        }
        let row = transaction.open_table(SUPERSEDED)?.get((service.as_str(), digest.as_bytes()))?;
        Ok(row.and_then(|row| parse(row.value().1).ok()))
    }

    /// What was built under this key before.
    pub(crate) fn content(&self, key: &ContentKey) -> Result<Option<Content>, StateError> {
        let table = self.database.begin_read()?.open_table(CONTENT)?;
        let row = table.get(key.as_bytes())?;
        Ok(row.and_then(|row| serde_json::from_slice(row.value()).ok()))
    }

    /// States which contents services have, and remembers those under their keys; all in one transaction. When this
    /// returns it is durable.
    pub(crate) fn publish(
        &self,
        stated: &[Stated],
        now: SystemTime,
        floor: Generation,
    ) -> Result<Vec<Change>, StateError> {
        let transaction = self.database.begin_write()?;
        let mut changes = Vec::with_capacity(stated.len());
        {
            let mut tables = Tables::open(&transaction)?;
            let mut contents = transaction.open_table(CONTENT)?;
            for Stated { statement, key, content } in stated {
                changes.push(tables.state(&self.signer, statement, content, now, floor)?);
                let content = serde_json::to_vec(content).expect("content is plain data");
                contents.insert(key.as_bytes(), content.as_slice())?;
            }
        }
        transaction.commit()?;
        Ok(changes)
    }

    /// Takes the services that are `gone` out of the current ones; their last versions are kept as superseded ones are, and
    /// their generations for good. Returns them, each with its last generation.
    pub(crate) fn retire(
        &self,
        gone: impl Fn(&str) -> bool,
        now: SystemTime,
    ) -> Result<Vec<(ServiceName, Generation)>, StateError> {
        let transaction = self.database.begin_write()?;
        let mut retired = Vec::new();
        {
            let mut superseded = transaction.open_table(SUPERSEDED)?;
            let mut currents = transaction.open_table(CURRENT)?;
            transaction.open_table(PINS)?.retain(|service, _| !gone(service))?;
            for row in currents.extract_if(|service, _| gone(service))? {
                let (_, bytes) = row?;
                if let Ok(descriptor) = parse(bytes.value()) {
                    supersede(&mut superseded, &descriptor, now)?;
                    let publication = descriptor.publication();
                    retired.push((publication.service.clone(), publication.generation));
                }
            }
        }
        transaction.commit()?;
        Ok(retired)
    }

    /// Puts other representations under a retained, superseded version, whose blob was built anew.
    pub(crate) fn revise_superseded(&self, version: &Descriptor, content: &Content) -> Result<(), StateError> {
        let publication = version.publication();
        let key = (publication.service.as_str(), publication.digest.as_bytes());
        let transaction = self.database.begin_write()?;
        {
            let mut superseded = transaction.open_table(SUPERSEDED)?;
            let at = superseded.get(key)?.map(|row| row.value().0);
            if let Some(at) = at {
                let descriptor = checked(self.signer.descriptor(decision::revised(version, content)))?;
                superseded.insert(key, (at, descriptor.bytes().as_ref()))?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Adds a representation to a service's digest, current or retained. `None`: there is no such version any more.
    pub(crate) fn add_representation(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        representation: &Representation,
    ) -> Result<Option<Reference>, StateError> {
        let transaction = self.database.begin_write()?;
        let mut found = None;
        {
            let mut currents = transaction.open_table(CURRENT)?;
            let current = currents.get(service.as_str())?.and_then(|row| parse(row.value()).ok());
            if let Some(current) = current.filter(|current| current.publication().digest == *digest) {
                let descriptor = added(&self.signer, current, representation)?;
                currents.insert(service.as_str(), descriptor.bytes().as_ref())?;
                found = Some(Reference { descriptor, current: true });
            } else {
                let mut superseded = transaction.open_table(SUPERSEDED)?;
                let key = (service.as_str(), digest.as_bytes());
                let row = superseded.get(key)?.map(|row| (row.value().0, parse(row.value().1)));
                if let Some((at, Ok(version))) = row {
                    let descriptor = added(&self.signer, version, representation)?;
                    superseded.insert(key, (at, descriptor.bytes().as_ref()))?;
                    found = Some(Reference { descriptor, current: false });
                }
            }
        }
        transaction.commit()?;
        Ok(found)
    }

    /// Drops a superseded version whose blob can be had no more.
    pub(crate) fn forget_superseded(&self, service: &ServiceName, digest: &TarballDigest) -> Result<(), StateError> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(SUPERSEDED)?.remove((service.as_str(), digest.as_bytes()))?;
        Ok(transaction.commit()?)
    }

    /// A descriptor that names this blob; a current one when there is one. Reads everything: for the rare blob that is
    /// missing.
    pub(crate) fn reference(&self, blob: &BlobDigest) -> Result<Option<Reference>, StateError> {
        let transaction = self.database.begin_read()?;
        for row in transaction.open_table(CURRENT)?.iter()? {
            if let Some(descriptor) = naming(row?.1.value(), blob) {
                return Ok(Some(Reference { descriptor, current: true }));
            }
        }
        for row in transaction.open_table(SUPERSEDED)?.iter()? {
            if let Some(descriptor) = naming(row?.1.value().1, blob) {
                return Ok(Some(Reference { descriptor, current: false }));
            }
        }
        Ok(None)
    }

    /// Drops the superseded versions that need not be kept, and what was remembered of blobs that nothing names then.
    /// Returns the blobs that are named.
    pub(crate) fn expire(&self, now: SystemTime) -> Result<HashSet<BlobDigest>, StateError> {
        let transaction = self.database.begin_write()?;
        let mut named = HashSet::new();
        {
            let currents = transaction.open_table(CURRENT)?;
            for row in currents.iter()? {
                // What cannot be read here names nothing that could be served.
                named.extend(parse(row?.1.value()).iter().flat_map(blobs));
            }
            let mut superseded = transaction.open_table(SUPERSEDED)?;
            for (service, digest) in expired(&superseded, now)? {
                superseded.remove((service.as_str(), &digest))?;
            }
            for row in superseded.iter()? {
                named.extend(parse(row?.1.value().1).iter().flat_map(blobs));
            }
            transaction.open_table(CONTENT)?.retain(|_, content| {
                serde_json::from_slice::<Content>(content).is_ok_and(|content| named.contains(&content.blob))
            })?;
        }
        transaction.commit()?;
        Ok(named)
    }
}

/// The tables that a publication changes.
pub(super) struct Tables<'t> {
    pub(super) currents: Table<'t, &'static str, &'static [u8]>,
    pub(super) generations: Table<'t, &'static str, u64>,
    superseded: Versions<'t>,
    pub(super) history: History<'t>,
    pub(super) pins: Table<'t, &'static str, u64>,
}

impl<'t> Tables<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, StateError> {
        Ok(Self {
            currents: transaction.open_table(CURRENT)?,
            generations: transaction.open_table(GENERATION)?,
            superseded: transaction.open_table(SUPERSEDED)?,
            history: transaction.open_table(HISTORY)?,
            pins: transaction.open_table(PINS)?,
        })
    }

    fn state(
        &mut self,
        signer: &Signer,
        statement: &Statement,
        content: &Content,
        now: SystemTime,
        floor: Generation,
    ) -> Result<Change, StateError> {
        let service = statement.service.as_str();
        let current = self.currents.get(service)?.and_then(|bytes| parse(bytes.value()).ok());
        let last = self.generations.get(service)?.map(|last| last.value());
        match decision::decide(current.as_ref(), statement, content, last, now, floor) {
            Decision::Keep => Ok(Change::None),
            Decision::Revise(fields) => {
                let descriptor = checked(signer.descriptor(fields))?;
                self.currents.insert(service, descriptor.bytes().as_ref())?;
                Ok(Change::Revised(descriptor))
            }
            // It was pinned while this was looked for or built.
            Decision::Publish(_) if current.is_some() && self.pins.get(service)?.is_some() => Ok(Change::None),
            Decision::Publish(fields) => {
                let descriptor = checked(signer.descriptor(fields))?;
                self.replace_current(&descriptor, &Entry::new(&descriptor, Why::Followed, None), now)?;
                Ok(Change::Published(descriptor))
            }
        }
    }

    /// A superseded version that can be had.
    pub(super) fn retained(&self, service: &str, digest: &TarballDigest) -> Result<Option<Descriptor>, StateError> {
        let row = self.superseded.get((service, digest.as_bytes()))?;
        Ok(row.and_then(|row| parse(row.value().1).ok()))
    }

    /// Makes a descriptor of a new generation the current one, and what was current a superseded one.
    pub(super) fn replace_current(
        &mut self,
        descriptor: &Descriptor,
        entry: &Entry,
        now: SystemTime,
    ) -> Result<(), StateError> {
        let publication = descriptor.publication();
        let service = publication.service.as_str();
        let before =
            self.currents.insert(service, descriptor.bytes().as_ref())?.and_then(|row| parse(row.value()).ok());
        self.generations.insert(service, publication.generation)?;
        if let Some(before) = before {
            supersede(&mut self.superseded, &before, now)?;
        }
        self.superseded.remove((service, publication.digest.as_bytes()))?;
        history::record(&mut self.history, service, entry, now)
    }
}

type Versions<'t> = Table<'t, VersionKey, VersionValue>;

fn supersede(superseded: &mut Versions<'_>, version: &Descriptor, now: SystemTime) -> Result<(), StateError> {
    let publication = version.publication();
    let key = (publication.service.as_str(), publication.digest.as_bytes());
    superseded.insert(key, (unix_milliseconds(now), version.bytes().as_ref()))?;
    Ok(())
}

fn expired(superseded: &Versions<'_>, now: SystemTime) -> Result<Vec<(String, [u8; 32])>, StateError> {
    let mut expired = Vec::new();
    let mut versions: Vec<Superseded<(String, [u8; 32])>> = Vec::new();
    // Rows come in the order of services.
    for row in superseded.iter()? {
        let (key, value) = row?;
        let (service, digest) = key.value();
        if versions.last().is_some_and(|last| last.version.0 != service) {
            expired.extend(retention::expired(std::mem::take(&mut versions), now));
        }
        let (at, bytes) = value.value();
        versions.push(Superseded {
            // What cannot be read cannot be served either, and is the first to go.
            generation: parse(bytes).map_or(0, |descriptor| descriptor.publication().generation),
            at: UNIX_EPOCH + Duration::from_millis(at),
            version: (service.to_owned(), *digest),
        });
    }
    expired.extend(retention::expired(versions, now));
    Ok(expired)
}

pub(super) fn parse(bytes: &[u8]) -> Result<Descriptor, DescriptorError> {
    Descriptor::parse(Bytes::copy_from_slice(bytes))
}

fn added(signer: &Signer, descriptor: Descriptor, representation: &Representation) -> Result<Descriptor, StateError> {
    decision::with(&descriptor, representation).map_or(Ok(descriptor), |fields| checked(signer.descriptor(fields)))
}

pub(super) fn checked(descriptor: Descriptor) -> Result<Descriptor, StateError> {
    match descriptor.bytes().len() {
        length if length > MAX_DESCRIPTOR_BYTES => Err(StateError::DescriptorTooLarge(length)),
        _ => Ok(descriptor),
    }
}

fn blobs(descriptor: &Descriptor) -> impl Iterator<Item = BlobDigest> {
    descriptor.representations().iter().map(|representation| representation.digest)
}

fn naming(bytes: &[u8], blob: &BlobDigest) -> Option<Descriptor> {
    parse(bytes).ok().filter(|descriptor| blobs(descriptor).any(|named| named == *blob))
}

pub(super) fn unix_milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
