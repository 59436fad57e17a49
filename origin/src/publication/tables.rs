//! The tables of versions, while they are changed: what goes together is changed together here.

use std::time::SystemTime;

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::digest::TarballDigest;
use weir_shared::name::ServiceName;

use super::history::{self, Entry, HISTORY, History};
use super::pin::PINS;
use super::references::References;
use super::rows::{
    CURRENT, GENERATION, SUPERSEDED, VersionKey, VersionValue, parse, parse_superseded, unix_milliseconds,
};
use super::state::StateError;
use crate::config::RetentionConfig;

/// When a version was superseded (Unix milliseconds), its service and digest → nothing: the superseded ones by age.
pub(super) const AGES: TableDefinition<'_, (u64, &str, &[u8; 32]), ()> = TableDefinition::new("ages_v1");

/// The tables that a publication changes.
pub(super) struct Tables<'t> {
    pub(super) currents: Table<'t, &'static str, &'static [u8]>,
    pub(super) generations: Table<'t, &'static str, u64>,
    superseded: Table<'t, VersionKey, VersionValue>,
    ages: Table<'t, (u64, &'static str, &'static [u8; 32]), ()>,
    pub(super) history: History<'t>,
    pub(super) pins: Table<'t, &'static str, u64>,
    pub(super) references: References<'t>,
}

impl<'t> Tables<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, StateError> {
        Ok(Self {
            currents: transaction.open_table(CURRENT)?,
            generations: transaction.open_table(GENERATION)?,
            superseded: transaction.open_table(SUPERSEDED)?,
            ages: transaction.open_table(AGES)?,
            history: transaction.open_table(HISTORY)?,
            pins: transaction.open_table(PINS)?,
            references: References::open(transaction)?,
        })
    }

    /// What a service is at.
    pub(super) fn current(&self, service: &str) -> Result<Option<Descriptor>, StateError> {
        Ok(self.currents.get(service)?.and_then(|row| parse(service, row.value()).ok()))
    }

    /// The last generation of a service, whatever became of it.
    pub(super) fn last_generation(&self, service: &str) -> Result<Option<Generation>, StateError> {
        Ok(self.generations.get(service)?.map(|last| last.value()))
    }

    /// A superseded version that can be had.
    pub(super) fn retained(&self, service: &str, digest: &TarballDigest) -> Result<Option<Descriptor>, StateError> {
        let row = self.superseded.get((service, digest.as_bytes()))?;
        Ok(row.and_then(|row| parse_superseded(service, digest.as_bytes(), row.value().1).ok()))
    }

    /// Puts the current publication in other forms.
    pub(super) fn revise_current(&mut self, revised: &Descriptor, now: SystemTime) -> Result<(), StateError> {
        let service = revised.publication().service.as_str();
        let before = self.current(service)?;
        self.currents.insert(service, revised.bytes().as_ref())?;
        self.references.replace(before.as_ref(), Some(revised), now)
    }

    /// Puts a superseded version in other forms. What is not kept any more stays away.
    pub(super) fn revise_superseded(&mut self, revised: &Descriptor, now: SystemTime) -> Result<(), StateError> {
        let publication = revised.publication();
        let key = (publication.service.as_str(), publication.digest.as_bytes());
        let row =
            self.superseded.get(key)?.map(|row| (row.value().0, parse_superseded(key.0, key.1, row.value().1).ok()));
        let Some((at, before)) = row else { return Ok(()) };
        self.superseded.insert(key, (at, revised.bytes().as_ref()))?;
        self.references.replace(before.as_ref(), Some(revised), now)
    }

    /// Makes a descriptor of a new generation the current one, and what was current a superseded one; the superseded
    /// ones of the service that are too many go.
    pub(super) fn replace_current(
        &mut self,
        descriptor: &Descriptor,
        entry: &Entry,
        retention: &RetentionConfig,
        now: SystemTime,
    ) -> Result<(), StateError> {
        let publication = descriptor.publication();
        let service = publication.service.as_str();
        let before = self.take_current(service)?;
        let had = match before {
            Some(before) if before.publication().digest == publication.digest => Some(before),
            Some(before) => {
                self.supersede(&before, now)?;
                self.take_superseded(service, &publication.digest)?
            }
            None => self.take_superseded(service, &publication.digest)?,
        };
        self.currents.insert(service, descriptor.bytes().as_ref())?;
        self.generations.insert(service, publication.generation)?;
        self.references.replace(had.as_ref(), Some(descriptor), now)?;
        history::record(&mut self.history, service, entry, retention)?;
        self.keep_newest(service, retention.versions, now)
    }

    /// Takes what a service is at out of what is current.
    pub(super) fn take_current(&mut self, service: &str) -> Result<Option<Descriptor>, StateError> {
        let row = self.currents.remove(service)?.map(|row| parse(service, row.value()).ok());
        if matches!(row, Some(None)) {
            self.references.doubt()?;
        }
        Ok(row.flatten())
    }

    /// A version becomes a superseded one.
    pub(super) fn supersede(&mut self, version: &Descriptor, now: SystemTime) -> Result<(), StateError> {
        let publication = version.publication();
        let (service, digest) = (publication.service.as_str(), publication.digest.as_bytes());
        let at = unix_milliseconds(now);
        self.superseded.insert((service, digest), (at, version.bytes().as_ref()))?;
        self.ages.insert((at, service, digest), ())?;
        Ok(())
    }

    /// A superseded version is kept no longer.
    pub(super) fn drop_superseded(
        &mut self,
        service: &str,
        digest: &TarballDigest,
        now: SystemTime,
    ) -> Result<(), StateError> {
        let dropped = self.take_superseded(service, digest)?;
        self.references.replace(dropped.as_ref(), None, now)
    }

    /// The version that was superseded the longest ago.
    pub(super) fn oldest(&self) -> Result<Option<(u64, String, TarballDigest)>, StateError> {
        Ok(self.ages.first()?.map(|(key, _)| {
            let (at, service, digest) = key.value();
            (at, service.to_owned(), blake3::Hash::from_bytes(*digest).into())
        }))
    }

    /// Drops the version of a row among the ages. False: the row was no version's, and is gone.
    pub(super) fn drop_aged(
        &mut self,
        at: u64,
        service: &str,
        digest: &TarballDigest,
        now: SystemTime,
    ) -> Result<bool, StateError> {
        self.ages.remove((at, service, digest.as_bytes()))?;
        let is_its = self.superseded.get((service, digest.as_bytes()))?.is_some_and(|row| row.value().0 == at);
        if is_its {
            self.drop_superseded(service, digest, now)?;
        }
        Ok(is_its)
    }

    /// Versions that were superseded at a time that has not come were so by `now` (Unix milliseconds), in the order that
    /// they have. How many.
    pub(super) fn stamp_anew(&mut self, now: u64) -> Result<usize, StateError> {
        let mut ahead = Vec::new();
        for row in self.ages.range((now.saturating_add(1), "", &[0; 32])..)? {
            let key = row?.0;
            let (at, service, digest) = key.value();
            ahead.push((at, service.to_owned(), *digest));
        }
        let mut anew = now;
        for (at, service, digest) in ahead.iter().rev() {
            self.ages.remove((*at, service.as_str(), digest))?;
            let key = (service.as_str(), digest);
            let row = self.superseded.get(key)?.map(|row| (row.value().0, row.value().1.to_vec()));
            if let Some((_, version)) = row.filter(|(superseded, _)| superseded == at) {
                self.superseded.insert(key, (anew, version.as_slice()))?;
                self.ages.insert((anew, key.0, key.1), ())?;
                anew = anew.saturating_sub(1);
            }
        }
        Ok(ahead.len())
    }

    /// Writes down anew which versions name which blobs, and which versions are how old. What nothing names is found by
    /// the sweeps.
    pub(super) fn index(&mut self, now: SystemTime) -> Result<(), StateError> {
        self.references.clear()?;
        self.ages.retain(|_, ()| false)?;
        let mut versions = Vec::new();
        for row in self.currents.iter()? {
            let (service, bytes) = row?;
            versions.push(parse(service.value(), bytes.value()).ok());
        }
        for row in self.superseded.iter()? {
            let (key, value) = row?;
            let ((service, digest), (at, bytes)) = (key.value(), value.value());
            self.ages.insert((at, service, digest), ())?;
            versions.push(parse_superseded(service, digest, bytes).ok());
        }
        let unread = versions.iter().filter(|version| version.is_none()).count();
        self.references.set_unread(unread)?;
        versions.iter().flatten().try_for_each(|version| self.references.replace(None, Some(version), now))
    }

    /// Drops the rows that cannot be read.
    pub(super) fn drop_unreadable(&mut self) -> Result<(), StateError> {
        self.currents.retain(|service, bytes| parse(service, bytes).is_ok())?;
        self.superseded.retain(|(service, digest), (_, bytes)| parse_superseded(service, digest, bytes).is_ok())?;
        self.history.retain(|(_, generation), json| history::parse_entry(generation, json).is_ok())?;
        self.pins.retain(|service, _| service.parse::<ServiceName>().is_ok())?;
        Ok(())
    }

    fn take_superseded(&mut self, service: &str, digest: &TarballDigest) -> Result<Option<Descriptor>, StateError> {
        let key = (service, digest.as_bytes());
        let read = |bytes: &[u8]| parse_superseded(service, digest.as_bytes(), bytes).ok();
        let row = self.superseded.remove(key)?.map(|row| (row.value().0, read(row.value().1)));
        let Some((at, version)) = row else { return Ok(None) };
        self.ages.remove((at, service, digest.as_bytes()))?;
        if version.is_none() {
            self.references.doubt()?;
        }
        Ok(version)
    }

    fn keep_newest(&mut self, service: &str, kept: usize, now: SystemTime) -> Result<(), StateError> {
        let mut versions = Vec::new();
        for row in self.superseded.range((service, &[0; 32])..=(service, &[0xff; 32]))? {
            let (key, value) = row?;
            // What cannot be read cannot be served either, and is the first to go. Generations tell what came later,
            // whatever the clock did.
            let generation = parse(service, value.value().1).map_or(0, |version| version.publication().generation);
            versions.push((generation, TarballDigest::from(blake3::Hash::from_bytes(*key.value().1))));
        }
        versions.sort_by_key(|(generation, _)| std::cmp::Reverse(*generation));
        for (_, digest) in versions.iter().skip(kept) {
            self.drop_superseded(service, digest, now)?;
        }
        Ok(())
    }
}
