//! The durable state of publications: one redb file. All of this blocks.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use redb::{ReadTransaction, ReadableTable, TableHandle, WriteTransaction};
use weir_shared::descriptor::{Descriptor, Generation, MAX_DESCRIPTOR_BYTES, Representation};
use weir_shared::digest::TarballDigest;
use weir_shared::name::ServiceName;

use super::contents::Contents;
use super::decision::{self, Content, Decision, Statement};
use super::history::{Entry, Why};
use super::look_up::Reference;
use super::pin::from_unix;
use super::references::{NAMES, TOTALS, UNREAD};
use super::tables::Tables;
use crate::config::RetentionConfig;
use crate::database::{DatabaseError, DatabaseFile, OfDatabase};
use crate::failpoint::failpoint;
use crate::signing::Signer;
use crate::tarball::ContentKey;

/// The publications of an origin.
#[derive(Debug)]
pub(crate) struct State {
    file: DatabaseFile,
    retention: RetentionConfig,
    pub(super) signer: Arc<Signer>,
}

/// The state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the state cannot be read or written: {0}")]
    Database(DatabaseError),
    #[error(
        "the descriptor would have {0} bytes, more than the limit of {MAX_DESCRIPTOR_BYTES}: fewer paths must be left out"
    )]
    DescriptorTooLarge(usize),
}

impl<E: Into<DatabaseError>> From<E> for StateError {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

impl OfDatabase for StateError {
    fn of_database(&self) -> Option<&DatabaseError> {
        match self {
            Self::Database(error) => Some(error),
            Self::DescriptorTooLarge(_) => None,
        }
    }
}

/// What a statement changed.
#[derive(Debug)]
pub(crate) enum Change {
    /// Nothing: this is durable already, and may be more than the process shows.
    Kept(Option<Descriptor>),
    /// Nothing, because the service is pinned to this since then.
    Pinned(Option<Descriptor>, SystemTime),
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

impl State {
    /// Opens the file, or makes a new one.
    pub(crate) fn open(path: &Path, retention: RetentionConfig) -> Result<Self, StateError> {
        Self::of(DatabaseFile::open(path)?, retention)
    }

    /// What a database holds.
    pub(crate) fn of(file: DatabaseFile, retention: RetentionConfig) -> Result<Self, StateError> {
        let state = Self { file, retention, signer: Arc::default() };
        state.write(|transaction| {
            let has_index = transaction.list_tables()?.any(|table| table.name() == NAMES.name());
            let mut tables = Tables::open(transaction)?;
            Contents::open(transaction)?;
            // A directory of a version that did not keep it.
            if has_index { Ok(()) } else { tables.index(SystemTime::now()) }
        })?;
        let unread = state.read(|transaction| {
            let totals = transaction.open_table(TOTALS)?;
            Ok::<_, StateError>(totals.get(UNREAD)?.map_or(0, |versions| versions.value()))
        })?;
        if unread > 0 {
            tracing::warn!(
                versions = unread,
                "versions cannot be read and may name any blob: none is removed until `weir-origin fsck --mend`"
            );
        }
        Ok(state)
    }

    pub(super) fn retention(&self) -> &RetentionConfig {
        &self.retention
    }

    pub(super) fn read<T>(&self, act: impl Fn(&ReadTransaction) -> Result<T, StateError>) -> Result<T, StateError> {
        self.file.read(act)
    }

    pub(super) fn write<T>(&self, act: impl Fn(&WriteTransaction) -> Result<T, StateError>) -> Result<T, StateError> {
        self.file.write(act)
    }

    /// States which contents services have, and remembers those under their keys; all in one transaction. When this
    /// returns it is durable. A service whose descriptor would be too large is left at what it is, and holds up no other.
    pub(crate) fn publish(
        &self,
        stated: &[Stated],
        now: SystemTime,
        floor: Generation,
    ) -> Result<Vec<Result<Change, StateError>>, StateError> {
        self.write(|transaction| {
            let mut tables = Tables::open(transaction)?;
            let mut contents = Contents::open(transaction)?;
            let mut changes = Vec::with_capacity(stated.len());
            for Stated { statement, key, content } in stated {
                let service = statement.service.as_str();
                match self.state(&mut tables, statement, content, now, floor) {
                    // Found before anything of it was written.
                    Err(StateError::DescriptorTooLarge(bytes)) => {
                        changes.push(Err(StateError::DescriptorTooLarge(bytes)));
                        continue;
                    }
                    change => changes.push(Ok(change?)),
                }
                contents.remember(key, content)?;
                if let Some(current) = tables.current(service)?.filter(|at| Content::of(at).as_ref() == Some(content)) {
                    contents.is_at(service, key, current.publication().generation)?;
                }
                tables.references.note(&content.blob, now)?;
            }
            failpoint!("the publication is not committed");
            Ok(changes)
        })
    }

    fn state(
        &self,
        tables: &mut Tables<'_>,
        statement: &Statement,
        content: &Content,
        now: SystemTime,
        floor: Generation,
    ) -> Result<Change, StateError> {
        let service = statement.service.as_str();
        let current = tables.current(service)?;
        let last = tables.last_generation(service)?;
        match decision::decide(current.as_ref(), statement, content, last, now, floor) {
            Decision::Keep => Ok(Change::Kept(current)),
            Decision::Revise(fields) => {
                let descriptor = checked(self.signer.descriptor(fields))?;
                tables.revise_current(&descriptor, now)?;
                Ok(Change::Revised(descriptor))
            }
            Decision::Publish(fields) => {
                // Perhaps while this was looked for or built.
                let pinned = tables.pins.get(service)?.map(|since| from_unix(since.value()));
                if let Some(since) = pinned.filter(|_| current.is_some()) {
                    return Ok(Change::Pinned(current, since));
                }
                let descriptor = checked(self.signer.descriptor(fields))?;
                let entry = Entry::new(&descriptor, Why::Followed, None);
                tables.replace_current(&descriptor, &entry, &self.retention, now)?;
                Ok(Change::Published(descriptor))
            }
        }
    }

    /// Takes services out of the current ones, all in one transaction; their last versions are kept as superseded ones
    /// are, and their generations for good. Returns those that were there, each with its last generation.
    pub(crate) fn retire<'a>(
        &self,
        gone: &(impl Iterator<Item = &'a str> + Clone),
        now: SystemTime,
    ) -> Result<Vec<(ServiceName, Generation)>, StateError> {
        self.write(|transaction| {
            let mut tables = Tables::open(transaction)?;
            let (mut retired, mut contents) = (Vec::new(), Contents::open(transaction)?);
            for service in gone.clone() {
                tables.pins.remove(service)?;
                contents.retire(service)?;
                if tables.currents.get(service)?.is_none() {
                    continue;
                }
                if let Some(current) = tables.take_current(service)? {
                    tables.supersede(&current, now)?;
                }
                // Also of one that cannot be read: readers hold what it was.
                if let (Some(generation), Ok(service)) = (tables.last_generation(service)?, service.parse()) {
                    retired.push((service, generation));
                }
            }
            Ok(retired)
        })
    }

    /// Adds a representation to a service's digest, current or retained. `None`: there is no such version any more.
    pub(crate) fn add_representation(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        representation: &Representation,
        now: SystemTime,
    ) -> Result<Option<Reference>, StateError> {
        self.write(|transaction| {
            let mut tables = Tables::open(transaction)?;
            let current = tables.current(service.as_str())?;
            if let Some(current) = current.filter(|current| current.publication().digest == *digest) {
                let descriptor = added(&self.signer, current, representation)?;
                tables.revise_current(&descriptor, now)?;
                return Ok(Some(Reference { descriptor, current: true }));
            }
            let Some(superseded) = tables.retained(service.as_str(), digest)? else { return Ok(None) };
            let descriptor = added(&self.signer, superseded, representation)?;
            tables.revise_superseded(&descriptor, now)?;
            Ok(Some(Reference { descriptor, current: false }))
        })
    }

    /// Drops a superseded version whose blob can be had no more.
    pub(crate) fn forget_superseded(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        now: SystemTime,
    ) -> Result<(), StateError> {
        self.write(|transaction| Tables::open(transaction)?.drop_superseded(service.as_str(), digest, now))
    }
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
