//! What can be read of a damaged database of publications, taken over into a new one: one bad page must not cost what
//! stands on all the others.
//!
//! Nothing is believed: rows are parsed, numbers have bounds, and a version is taken over only when its tarball is found
//! to be what it states. What is lost otherwise is published anew.

use std::collections::BTreeSet;
use std::path::Path;

use redb::{Range, ReadOnlyTable, StorageError, TableDefinition, WriteTransaction};
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::name::ServiceName;

use super::history::{self, HISTORY};
use super::pin::PINS;
use super::rows::{CURRENT, GENERATION, SUPERSEDED, VersionKey, VersionValue, parse, parse_superseded};
use super::signatures::{KEYS, SIGNATURES};
use super::state::{State, StateError};
use crate::database::{Damaged, Rows};

/// No generation is higher: beyond it a reader of JSON may take it for another one.
const HIGHEST_GENERATION: Generation = 1 << 53;

/// Rows that are written in one transaction.
const BATCH: usize = 1000;

/// What was taken over of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Salvaged {
    /// What its rows are, in the plural.
    pub(crate) what: &'static str,
    /// How many were taken over.
    pub(crate) rows: usize,
    /// Of what rows were read and found to be wrong.
    pub(crate) wrong: Vec<String>,
    /// Every row was read.
    pub(crate) is_whole: bool,
    /// Services whose rows cannot be read, if there are any.
    pub(crate) unknown: Vec<String>,
}

impl Salvaged {
    /// Whether nothing of it is lost.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_whole && self.wrong.is_empty()
    }
}

/// A table that is taken over.
trait Kept: Rows {
    const WHAT: &'static str;

    /// Of which service a row is, or which entry of it.
    fn of_what(row: &Self::Row) -> String;

    fn write(rows: &BTreeSet<Self::Row>, transaction: &WriteTransaction) -> Result<(), StateError>;
}

impl State {
    /// Takes over what can be read of a damaged database: pins, last generations, histories, current and superseded
    /// versions, in this order. `services` are asked for one by one where a table cannot be read from end to end; where the
    /// last generation of one of them is lost, it goes on above every generation that was read. `is_right` says whether a
    /// version is what it states.
    pub(crate) fn take_over(
        &self,
        damaged: &Path,
        services: &BTreeSet<String>,
        is_right: impl Fn(&Descriptor) -> bool,
    ) -> Result<Vec<Salvaged>, StateError> {
        let damaged = Damaged::at(damaged);
        let (mut highest, mut known) = (0, BTreeSet::new());
        let is_name = |name: &str| name.parse::<ServiceName>().is_ok();
        let pins = self.take_table::<Pins>(&damaged, services, |(service, _)| is_name(service))?;
        let generations = self.take_table::<Generations>(&damaged, services, |(service, generation)| {
            let is_right = is_name(service) && *generation <= HIGHEST_GENERATION;
            if is_right {
                highest = highest.max(*generation);
                known.insert(service.clone());
            }
            is_right
        })?;
        let histories = self.take_table::<Histories>(&damaged, services, |(service, generation, json)| {
            let is_right = is_name(service)
                && *generation <= HIGHEST_GENERATION
                && history::parse_entry(*generation, json).is_ok();
            highest = highest.max(if is_right { *generation } else { 0 });
            is_right
        })?;
        if !generations.is_complete() {
            let lost: Vec<_> = services.difference(&known).collect();
            self.go_on_above(&lost, highest)?;
        }
        let currents = self.take_table::<Currents>(&damaged, services, |(service, bytes)| {
            parse(service, bytes).is_ok_and(|version| is_right(&version))
        })?;
        let superseded = self.take_table::<Superseded>(&damaged, services, |(service, digest, _, bytes)| {
            parse_superseded(service, digest, bytes).is_ok_and(|version| is_right(&version))
        })?;
        // Which keys signed it all. Where that is lost everything is signed anew.
        self.take_table::<Keys>(&damaged, &BTreeSet::new(), |(key, _)| key == KEYS)?;
        Ok(vec![pins, generations, histories, currents, superseded])
    }

    fn take_table<T: Kept>(
        &self,
        damaged: &Damaged,
        services: &BTreeSet<String>,
        mut is_right: impl FnMut(&T::Row) -> bool,
    ) -> Result<Salvaged, StateError> {
        let (mut rows, mut wrong) = (BTreeSet::new(), BTreeSet::new());
        let extent = damaged.read::<T>(services, |row| {
            if rows.contains(&row) || wrong.contains(&row) {
                return;
            }
            if is_right(&row) {
                rows.insert(row)
            } else {
                wrong.insert(row)
            };
        });
        let taken = rows.len();
        while !rows.is_empty() {
            let later = rows.iter().nth(BATCH).cloned().map(|first| rows.split_off(&first));
            self.write(|transaction| T::write(&rows, transaction))?;
            rows = later.unwrap_or_default();
        }
        Ok(Salvaged {
            what: T::WHAT,
            rows: taken,
            wrong: wrong.iter().map(T::of_what).collect(),
            is_whole: extent.is_whole,
            unknown: extent.unknown,
        })
    }

    /// Whatever these services were at, they go on above that.
    fn go_on_above(&self, services: &[&String], highest: Generation) -> Result<(), StateError> {
        self.write(|transaction| {
            let mut generations = transaction.open_table(GENERATION)?;
            services.iter().try_for_each(|service| Ok(generations.insert(service.as_str(), highest).map(drop)?))
        })
    }
}

type Found<K, V> = Result<Range<'static, K, V>, StorageError>;

struct Pins;

impl Rows for Pins {
    type Key = &'static str;
    type Value = u64;
    type Row = (String, u64);

    const TABLE: TableDefinition<'static, &'static str, u64> = PINS;

    fn row(service: &str, since: u64) -> (String, u64) {
        (service.to_owned(), since)
    }

    fn of(table: &ReadOnlyTable<&'static str, u64>, service: &str) -> Found<&'static str, u64> {
        table.range(service..=service)
    }
}

impl Kept for Pins {
    const WHAT: &'static str = "pins";

    fn of_what((service, _): &(String, u64)) -> String {
        service.clone()
    }

    fn write(rows: &BTreeSet<Self::Row>, transaction: &WriteTransaction) -> Result<(), StateError> {
        let mut pins = transaction.open_table(PINS)?;
        rows.iter().try_for_each(|(service, since)| Ok(pins.insert(service.as_str(), since).map(drop)?))
    }
}

struct Generations;

impl Rows for Generations {
    type Key = &'static str;
    type Value = u64;
    type Row = (String, Generation);

    const TABLE: TableDefinition<'static, &'static str, u64> = GENERATION;

    fn row(service: &str, generation: u64) -> (String, Generation) {
        (service.to_owned(), generation)
    }

    fn of(table: &ReadOnlyTable<&'static str, u64>, service: &str) -> Found<&'static str, u64> {
        table.range(service..=service)
    }
}

impl Kept for Generations {
    const WHAT: &'static str = "last generations";

    fn of_what((service, _): &(String, u64)) -> String {
        service.clone()
    }

    fn write(rows: &BTreeSet<Self::Row>, transaction: &WriteTransaction) -> Result<(), StateError> {
        let mut generations = transaction.open_table(GENERATION)?;
        rows.iter().try_for_each(|(service, last)| Ok(generations.insert(service.as_str(), last).map(drop)?))
    }
}

struct Histories;

impl Rows for Histories {
    type Key = (&'static str, u64);
    type Value = &'static [u8];
    type Row = (String, Generation, Vec<u8>);

    const TABLE: TableDefinition<'static, (&'static str, u64), &'static [u8]> = HISTORY;

    fn row((service, generation): (&str, u64), json: &[u8]) -> Self::Row {
        (service.to_owned(), generation, json.to_owned())
    }

    fn of(
        table: &ReadOnlyTable<(&'static str, u64), &'static [u8]>,
        service: &str,
    ) -> Found<(&'static str, u64), &'static [u8]> {
        table.range((service, 0)..=(service, u64::MAX))
    }
}

impl Kept for Histories {
    const WHAT: &'static str = "entries of histories";

    fn of_what((service, generation, _): &Self::Row) -> String {
        format!("{service} at {generation}")
    }

    fn write(rows: &BTreeSet<Self::Row>, transaction: &WriteTransaction) -> Result<(), StateError> {
        let mut history = transaction.open_table(HISTORY)?;
        rows.iter().try_for_each(|(service, generation, json)| {
            Ok(history.insert((service.as_str(), *generation), json.as_slice()).map(drop)?)
        })
    }
}

struct Currents;

impl Rows for Currents {
    type Key = &'static str;
    type Value = &'static [u8];
    type Row = (String, Vec<u8>);

    const TABLE: TableDefinition<'static, &'static str, &'static [u8]> = CURRENT;

    fn row(service: &str, descriptor: &[u8]) -> (String, Vec<u8>) {
        (service.to_owned(), descriptor.to_owned())
    }

    fn of(table: &ReadOnlyTable<&'static str, &'static [u8]>, service: &str) -> Found<&'static str, &'static [u8]> {
        table.range(service..=service)
    }
}

impl Kept for Currents {
    const WHAT: &'static str = "current versions";

    fn of_what((service, _): &Self::Row) -> String {
        service.clone()
    }

    fn write(rows: &BTreeSet<Self::Row>, transaction: &WriteTransaction) -> Result<(), StateError> {
        let mut current = transaction.open_table(CURRENT)?;
        rows.iter().try_for_each(|(service, bytes)| Ok(current.insert(service.as_str(), bytes.as_slice()).map(drop)?))
    }
}

struct Superseded;

impl Rows for Superseded {
    type Key = VersionKey;
    type Value = VersionValue;
    type Row = (String, [u8; 32], u64, Vec<u8>);

    const TABLE: TableDefinition<'static, VersionKey, VersionValue> = SUPERSEDED;

    fn row((service, digest): (&str, &[u8; 32]), (at, descriptor): (u64, &[u8])) -> Self::Row {
        (service.to_owned(), *digest, at, descriptor.to_owned())
    }

    fn of(table: &ReadOnlyTable<VersionKey, VersionValue>, service: &str) -> Found<VersionKey, VersionValue> {
        table.range((service, &[0; 32])..=(service, &[0xff; 32]))
    }
}

impl Kept for Superseded {
    const WHAT: &'static str = "superseded versions";

    fn of_what((service, digest, ..): &Self::Row) -> String {
        format!("{service} b3-{}", blake3::Hash::from_bytes(*digest).to_hex())
    }

    fn write(rows: &BTreeSet<Self::Row>, transaction: &WriteTransaction) -> Result<(), StateError> {
        let mut superseded = transaction.open_table(SUPERSEDED)?;
        rows.iter().try_for_each(|(service, digest, at, bytes)| {
            Ok(superseded.insert((service.as_str(), digest), (*at, bytes.as_slice())).map(drop)?)
        })
    }
}

struct Keys;

impl Rows for Keys {
    type Key = &'static str;
    type Value = &'static str;
    type Row = (String, String);

    const TABLE: TableDefinition<'static, &'static str, &'static str> = SIGNATURES;

    fn row(key: &str, lines: &str) -> (String, String) {
        (key.to_owned(), lines.to_owned())
    }

    fn of(table: &ReadOnlyTable<&'static str, &'static str>, key: &str) -> Found<&'static str, &'static str> {
        table.range(key..=key)
    }
}

impl Kept for Keys {
    const WHAT: &'static str = "keys";

    fn of_what((key, _): &Self::Row) -> String {
        key.clone()
    }

    fn write(rows: &BTreeSet<Self::Row>, transaction: &WriteTransaction) -> Result<(), StateError> {
        let mut signatures = transaction.open_table(SIGNATURES)?;
        rows.iter().try_for_each(|(key, lines)| Ok(signatures.insert(key.as_str(), lines.as_str()).map(drop)?))
    }
}
