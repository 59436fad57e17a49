//! What can be read of a damaged database of publications, taken over into a new one: one bad page must not cost what
//! stands on all the others.
//!
//! A row that is as it was written is taken over. Of any other one a bit may have flipped, and it is believed when other
//! rows bear it out; numbers have bounds. No version is taken over that does not bear the signatures it was written with,
//! or whose tarball is another. What is lost otherwise is published anew, above every generation that was read.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use redb::{ReadableTable, TableDefinition, Value, WriteTransaction};
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::name::ServiceName;

use super::history::{self, HISTORY};
use super::inspection::{is_signed, keys_of};
use super::pin::PINS;
use super::rows::{CURRENT, GENERATION, RowError, SUPERSEDED, VersionKey, VersionValue, parse, parse_superseded};
use super::signatures::{KEYS, SIGNATURES};
use super::state::{State, StateError};
use super::tables::Tables;
use crate::config::LARGEST_FLOOR;
use crate::database::{Damaged, Extent, Rows};

/// No generation is higher: beyond it a reader of JSON may take it for another one.
const HIGHEST_GENERATION: Generation = 1 << 53;

/// Rows that are written in one transaction.
const BATCH: usize = 1000;

/// What was taken over.
#[derive(Debug)]
pub(crate) struct Salvage {
    pub(crate) tables: Vec<Salvaged>,
    /// Services that are pinned, and of which nothing is current.
    pub(crate) pinned_to_nothing: Vec<String>,
}

/// What was taken over of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Salvaged {
    /// What its rows are, in the plural.
    pub(crate) what: &'static str,
    /// How many were taken over.
    pub(crate) rows: usize,
    /// Of what rows were read and found to be wrong.
    pub(crate) wrong: Vec<String>,
    /// Every row was read, as it was written.
    pub(crate) is_whole: bool,
    /// It is what was there before the last commit.
    pub(crate) is_older: bool,
    /// Services whose rows cannot be read, if there are any.
    pub(crate) unknown: Vec<String>,
}

/// Whether a version's tarball is what the version states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tarball {
    Right,
    /// It is another.
    Wrong,
    /// It is missing, damaged, or cannot be read just now.
    Unknown,
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
    /// versions. Where the last generation of one of the `services` is lost, it goes on above every generation that was
    /// read. `tarball` says whether a version is what it states.
    pub(crate) fn take_over(
        &self,
        damaged: &Path,
        services: &BTreeSet<String>,
        tarball: impl Fn(&Descriptor) -> Tarball,
        now: SystemTime,
    ) -> Result<Salvage, StateError> {
        let damaged = Damaged::at(damaged);
        let (mut highest, mut known, mut keys) = (0, BTreeSet::new(), Vec::new());
        let is_name = |name: &str| name.parse::<ServiceName>().is_ok();
        let pins = self.take_table::<Pins>(&damaged, services, |(service, _), is_sound| {
            Ok(is_name(service) && (is_sound || services.contains(service)))
        })?;
        let generations = self.take_table::<Generations>(&damaged, services, |(service, generation), is_sound| {
            let is_right = is_name(service) && is_sane(*generation, is_sound);
            highest = highest.max(if is_right { *generation } else { 0 });
            if is_right && is_sound {
                known.insert(service.clone());
            }
            Ok(is_right)
        })?;
        let histories = self.take_table::<Histories>(&damaged, services, |(service, generation, json), is_sound| {
            let is_right =
                is_name(service) && is_sane(*generation, is_sound) && history::parse_entry(*generation, json).is_ok();
            highest = highest.max(if is_right { *generation } else { 0 });
            Ok(is_right)
        })?;
        // Which keys signed it all. Where that is lost everything is signed anew.
        self.take_table::<Keys>(&damaged, &BTreeSet::new(), |(key, lines), is_sound| {
            let is_right = key == KEYS && is_sound;
            if is_right {
                keys = keys_of(lines);
            }
            Ok(is_right)
        })?;
        let mut is_right =
            |version: Result<Descriptor, RowError>, is_sound: bool, is_current: bool| -> Result<bool, StateError> {
                let Ok(version) = version else { return Ok(false) };
                let generation = version.publication().generation;
                if !is_sane(generation, is_sound) {
                    return Ok(false);
                }
                // Also of one that is not taken over.
                highest = highest.max(generation);
                Ok((is_sound || self.is_borne_out(&version, is_current)?)
                    && is_signed(&version, &keys)
                    && tarball(&version) != Tarball::Wrong)
            };
        let currents = self.take_table::<Currents>(&damaged, services, |(service, bytes), is_sound| {
            let is_right = is_right(parse(service, bytes), is_sound, true)?;
            if is_right {
                known.insert(service.clone());
            }
            Ok(is_right)
        })?;
        let superseded =
            self.take_table::<Superseded>(&damaged, services, |(service, digest, _, bytes), is_sound| {
                is_right(parse_superseded(service, digest, bytes), is_sound, false)
            })?;
        let tables = vec![pins, generations, histories, currents, superseded];
        // Before anybody takes the new database for the old one: the process may end at any time.
        let lost = if tables[1].is_complete() { BTreeSet::new() } else { services.difference(&known).collect() };
        self.go_on_above(&lost, highest, now)?;
        if tables.iter().any(|table| table.is_older) {
            // Any service may have been published since.
            self.lift(highest + 1, now)?;
            // Nothing is signed here.
            self.write(|transaction| Ok(transaction.open_table(SIGNATURES)?.remove(KEYS).map(drop)?))?;
        }
        Ok(Salvage { tables, pinned_to_nothing: self.pinned_to_nothing()? })
    }

    /// Whether other rows say the same of a version of which a bit may have flipped, or after which another one may have
    /// come: the history, and the last generation.
    fn is_borne_out(&self, version: &Descriptor, is_current: bool) -> Result<bool, StateError> {
        let publication = version.publication();
        let (service, generation) = (publication.service.as_str(), publication.generation);
        self.read(|transaction| {
            let history = transaction.open_table(HISTORY)?;
            let newest = history.range((service, 0)..=(service, u64::MAX))?.next_back().transpose()?;
            let newest = newest.map(|(key, _)| key.value().1);
            let last = transaction.open_table(GENERATION)?.get(service)?.map(|last| last.value());
            let is_last = newest.max(last) == Some(generation);
            let entry = history.get((service, generation))?;
            let entry = entry.and_then(|row| history::parse_entry(generation, row.value()).ok());
            Ok(entry.map_or(is_current, |entry| entry.is_of(publication)) && (is_last || !is_current))
        })
    }

    fn take_table<T: Kept>(
        &self,
        damaged: &Damaged,
        services: &BTreeSet<String>,
        mut is_right: impl FnMut(&T::Row, bool) -> Result<bool, StateError>,
    ) -> Result<Salvaged, StateError> {
        let (mut in_doubt, mut sound) = (BTreeSet::new(), BTreeSet::new());
        let extent = damaged.read::<T>(services, |row, is_sound| {
            let rows = if is_sound { &mut sound } else { &mut in_doubt };
            rows.insert(row);
        });
        let (mut taken, mut wrong) = (0, Vec::new());
        // What is as it was written takes the place of what is not.
        for (read, is_sound) in [(in_doubt, false), (sound, true)] {
            let mut rows = BTreeSet::new();
            for row in read {
                if is_right(&row, is_sound)? {
                    rows.insert(row);
                } else {
                    wrong.push(T::of_what(&row));
                }
            }
            taken += rows.len();
            while !rows.is_empty() {
                let later = rows.iter().nth(BATCH).cloned().map(|first| rows.split_off(&first));
                self.write(|transaction| T::write(&rows, transaction))?;
                rows = later.unwrap_or_default();
            }
        }
        wrong.dedup();
        let Extent { is_whole, is_older, unknown } = extent;
        Ok(Salvaged { what: T::WHAT, rows: taken, wrong, is_whole, is_older, unknown })
    }

    /// Whatever these services were at, they go on above that; and so do the others above what was taken over of them.
    fn go_on_above(&self, lost: &BTreeSet<&String>, highest: Generation, now: SystemTime) -> Result<(), StateError> {
        let behind = self.inspect()?.behind;
        self.write(|transaction| {
            let mut tables = Tables::open(transaction)?;
            let lost = lost.iter().map(|service| (service.as_str(), highest));
            for (service, generation) in behind.iter().map(|(service, last)| (service.as_str(), *last)).chain(lost) {
                let last = tables.last_generation(service)?.unwrap_or_default();
                tables.generations.insert(service, last.max(generation))?;
            }
            tables.index(now)
        })
    }

    fn pinned_to_nothing(&self) -> Result<Vec<String>, StateError> {
        self.read(|transaction| {
            let (currents, mut services) = (transaction.open_table(CURRENT)?, Vec::new());
            for row in transaction.open_table(PINS)?.iter()? {
                let service = row?.0.value().to_owned();
                if currents.get(service.as_str())?.is_none() {
                    services.push(service);
                }
            }
            Ok(services)
        })
    }
}

/// Whether a generation can have been given out. One of which a bit may have flipped is believed up to where
/// `generation_floor` can still go above it.
fn is_sane(generation: Generation, is_sound: bool) -> bool {
    generation <= if is_sound { HIGHEST_GENERATION } else { LARGEST_FLOOR }
}

/// A service's only key, where its name is the key.
fn named(service: &str) -> [Vec<u8>; 2] {
    [service.into(), service.into()]
}

struct Pins;

impl Rows for Pins {
    type Key = &'static str;
    type Value = u64;
    type Row = (String, u64);

    const TABLE: TableDefinition<'static, &'static str, u64> = PINS;

    fn row(service: &str, since: u64) -> (String, u64) {
        (service.to_owned(), since)
    }

    fn keys(service: &str) -> [Vec<u8>; 2] {
        named(service)
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

    fn keys(service: &str) -> [Vec<u8>; 2] {
        named(service)
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

    fn keys(service: &str) -> [Vec<u8>; 2] {
        [0, u64::MAX].map(|generation| Self::Key::as_bytes(&(service, generation)))
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

    fn keys(service: &str) -> [Vec<u8>; 2] {
        named(service)
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

    fn keys(service: &str) -> [Vec<u8>; 2] {
        [[0; 32], [0xff; 32]].map(|digest| Self::Key::as_bytes(&(service, &digest)))
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

    fn keys(service: &str) -> [Vec<u8>; 2] {
        named(service)
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
