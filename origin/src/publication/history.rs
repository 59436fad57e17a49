//! The history of a service: each of its publications, with why it was made and when it was pinned. It outlives the
//! versions themselves, and is bounded by number and age.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::{ReadTransaction, ReadableTable, Table, TableDefinition};
use serde::{Deserialize, Serialize};
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::{Descriptor, Generation, Publication};
use weir_shared::digest::TarballDigest;
use weir_shared::name::ServiceName;

use super::rows::{CURRENT, GENERATION, SUPERSEDED, parse};
use super::state::{State, StateError};
use crate::config::RetentionConfig;

/// Service, generation → an [`Entry`] as JSON.
pub(super) const HISTORY: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("publications_v1");

pub(super) type History<'t> = Table<'t, (&'static str, u64), &'static [u8]>;

/// Old entries that go in one transaction at the most.
const BATCH: usize = 1000;

/// 9999-12-31T23:59:59Z: RFC 3339 has no later time.
const LAST_SECOND: u64 = 253_402_300_799;

/// The most entries of one page.
pub(crate) const LARGEST_PAGE: usize = 200;

/// Why a publication was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The ref moved there.
    Followed,
    /// An operator went back to it.
    RolledBack,
    /// It stood below the floor of generations.
    Lifted,
}

/// One publication.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Which one.
    pub generation: Generation,
    /// Of what content.
    pub digest: TarballDigest,
    /// Of what commit.
    pub commit: CommitId,
    /// When.
    pub published_at: Time,
    /// Why.
    pub why: Why,
    /// The operator who went back to it, or who pinned or unpinned it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When it was pinned last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_at: Option<Time>,
    /// When it was unpinned last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpinned_at: Option<Time>,
}

/// A publication, and what is left of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The publication.
    #[serde(flatten)]
    pub entry: Entry,
    /// It is the current one.
    pub current: bool,
    /// Its digest can be had, and gone back to.
    pub retained: bool,
}

/// A part of a history, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Page {
    /// One after the other.
    pub publications: Vec<Listed>,
    /// The generation before which the next page begins, if there is one.
    pub next_before: Option<Generation>,
}

/// A time in whole seconds, from 1970 to 9999, whatever it is made of: RFC 3339 in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Time(SystemTime);

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let whole = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self(UNIX_EPOCH + Duration::from_secs(whole.min(LAST_SECOND)))
    }
}

impl From<Time> for String {
    fn from(time: Time) -> Self {
        humantime::format_rfc3339_seconds(time.0).to_string()
    }
}

impl TryFrom<String> for Time {
    type Error = humantime::TimestampError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        humantime::parse_rfc3339(&text).map(Self::from)
    }
}

impl Entry {
    pub(super) fn new(descriptor: &Descriptor, why: Why, by: Option<&str>) -> Self {
        let publication = descriptor.publication();
        Self {
            generation: publication.generation,
            digest: publication.digest,
            commit: publication.commit.clone(),
            published_at: publication.published_at.into(),
            why,
            by: by.map(str::to_owned),
            pinned_at: None,
            unpinned_at: None,
        }
    }

    /// Whether it is the entry of this publication.
    pub(super) fn is_of(&self, publication: &Publication) -> bool {
        let Publication { generation, digest, commit, published_at, .. } = publication;
        (&self.generation, &self.digest, &self.commit) == (generation, digest, commit)
            && self.published_at == (*published_at).into()
    }
}

impl State {
    /// A service's publications before a generation (`None`: from the newest on), `limit` of them at the most and never
    /// more than [`LARGEST_PAGE`]. A service that is not configured any more has its history for as long as it lasts.
    pub(crate) fn history(
        &self,
        service: &ServiceName,
        before: Option<Generation>,
        limit: usize,
    ) -> Result<Page, StateError> {
        let limit = limit.clamp(1, LARGEST_PAGE);
        let service = service.as_str();
        self.read(|transaction| {
            let (currents, superseded) = (transaction.open_table(CURRENT)?, transaction.open_table(SUPERSEDED)?);
            let current = currents.get(service)?.and_then(|row| parse(service, row.value()).ok());
            let current = current.as_ref().map(Descriptor::publication);
            let mut page = Page { publications: Vec::new(), next_before: None };
            let history = transaction.open_table(HISTORY)?;
            for row in history.range((service, 0)..(service, before.unwrap_or(u64::MAX)))?.rev() {
                let (key, value) = row?;
                if page.publications.len() == limit {
                    page.next_before = page.publications.last().map(|last| last.entry.generation);
                    break;
                }
                let Some(entry) = read(service, key.value().1, value.value()) else { continue };
                let is_now = current.is_some_and(|current| current.digest == entry.digest);
                page.publications.push(Listed {
                    current: current.is_some_and(|current| current.generation == entry.generation),
                    retained: is_now || superseded.get((service, entry.digest.as_bytes()))?.is_some(),
                    entry,
                });
            }
            Ok(page)
        })
    }
}

/// A row that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum EntryError {
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    #[error("it is the entry of generation {0}")]
    AnothersRow(Generation),
}

/// Reads a row: that of this generation.
pub(super) fn parse_entry(generation: Generation, json: &[u8]) -> Result<Entry, EntryError> {
    let entry: Entry = serde_json::from_slice(json)?;
    if entry.generation == generation { Ok(entry) } else { Err(EntryError::AnothersRow(entry.generation)) }
}

impl State {
    /// Drops the entries that are too old, also of services that are not published any more; that of what is current stays.
    /// How many went. Looks at the first entries of every service: for once in a while.
    pub(crate) fn age_history(&self, now: SystemTime) -> Result<u64, StateError> {
        let mut dropped = 0;
        loop {
            let old = self.read(|transaction| old_entries(transaction, self.retention(), now))?;
            if old.is_empty() {
                return Ok(dropped);
            }
            self.write(|transaction| {
                let mut history = transaction.open_table(HISTORY)?;
                old.iter().try_for_each(|(service, generation)| {
                    Ok(history.remove((service.as_str(), *generation)).map(drop)?)
                })
            })?;
            dropped += old.len() as u64;
        }
    }
}

/// Some of the entries that are too old.
fn old_entries(
    transaction: &ReadTransaction,
    retention: &RetentionConfig,
    now: SystemTime,
) -> Result<Vec<(String, Generation)>, StateError> {
    let (history, currents) = (transaction.open_table(HISTORY)?, transaction.open_table(CURRENT)?);
    let generations = transaction.open_table(GENERATION)?;
    let (mut old, mut from) = (Vec::new(), String::new());
    while old.len() < BATCH
        && let Some(first) = history.range((from.as_str(), 0)..)?.next()
    {
        let service = first?.0.value().0.to_owned();
        let is_published = currents.get(service.as_str())?.is_some();
        let last = generations.get(service.as_str())?.map(|last| last.value());
        for row in history.range((service.as_str(), 0)..=(service.as_str(), u64::MAX))? {
            let (key, value) = row?;
            let generation = key.value().1;
            if is_published && last == Some(generation) || !is_old(value.value(), retention, now) {
                break;
            }
            old.push((service.clone(), generation));
            if old.len() == BATCH {
                break;
            }
        }
        // The first name that sorts after it.
        from = service + "\0";
    }
    Ok(old)
}

/// Whether an entry is remembered for long enough. One that cannot be read is.
fn is_old(json: &[u8], retention: &RetentionConfig, now: SystemTime) -> bool {
    let published = serde_json::from_slice::<Entry>(json).map_or(UNIX_EPOCH, |entry| entry.published_at.0);
    now.duration_since(published).is_ok_and(|age| age >= retention.history_age)
}

/// A row as it stands on the disk. One that cannot be read is passed over.
fn read(service: &str, generation: Generation, json: &[u8]) -> Option<Entry> {
    let entry = parse_entry(generation, json).inspect_err(|error| {
        tracing::warn!(service, generation, %error, "an entry of the history cannot be read; it is passed over");
    });
    entry.ok()
}

/// Writes an entry, and drops those of its service that are too many. (Those that are too old go with sweeps, which know
/// whether the clock is in doubt.)
pub(super) fn record(
    history: &mut History<'_>,
    service: &str,
    entry: &Entry,
    retention: &RetentionConfig,
) -> Result<(), StateError> {
    let json = serde_json::to_vec(entry).expect("an entry is plain data");
    history.insert((service, entry.generation), json.as_slice())?;
    let mut dropped = Vec::new();
    let mut left = history.range((service, 0)..=(service, u64::MAX))?.count();
    for row in history.range((service, 0)..(service, entry.generation))? {
        let (key, _) = row?;
        if left <= retention.history {
            break;
        }
        left -= 1;
        dropped.push(key.value().1);
    }
    for generation in dropped {
        history.remove((service, generation))?;
    }
    Ok(())
}

/// The entry of a publication.
pub(super) fn entry(history: &History<'_>, descriptor: &Descriptor) -> Result<Option<Entry>, StateError> {
    let Publication { service, generation, .. } = descriptor.publication();
    let row = history.get((service.as_str(), *generation))?;
    Ok(row.and_then(|row| read(service.as_str(), *generation, row.value())))
}

/// Changes the entry of a publication, if there is one.
pub(super) fn amend(
    history: &mut History<'_>,
    descriptor: &Descriptor,
    change: impl FnOnce(&mut Entry),
) -> Result<(), StateError> {
    let publication = descriptor.publication();
    let key = (publication.service.as_str(), publication.generation);
    // A publication of a version without a history has its entry from its first pin on.
    let mut entry = entry(history, descriptor)?.unwrap_or_else(|| Entry::new(descriptor, Why::Followed, None));
    change(&mut entry);
    let json = serde_json::to_vec(&entry).expect("an entry is plain data");
    history.insert(key, json.as_slice())?;
    Ok(())
}
