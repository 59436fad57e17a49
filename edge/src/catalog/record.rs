//! The records of the catalog's journal, and how they are replayed. Pure.
//!
//! A record is a line: a checksum, a space, JSON. The last record of a service wins, unless an earlier one has a higher
//! generation, which happens when records in between were damaged.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;

use super::entry::VersionNumber;

/// Hexadecimal digits of the checksum: the first of the BLAKE3 of the JSON.
const CHECKSUM_DIGITS: usize = 16;

/// One line. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record {
    /// A stored service; a tombstone when it has no descriptor.
    Service {
        service: ServiceName,
        row: EntryRecord,
    },
    Evicted {
        service: ServiceName,
        floor: GenerationFloor,
    },
    /// The individual validation of a service.
    Validated {
        service: ServiceName,
        at: u64,
    },
    /// The hard purge of a service.
    Purged {
        service: ServiceName,
        at: u64,
    },
    /// The lease of an origin: validates all its services except these and except tombstones.
    Leased {
        origin: String,
        at: u64,
        except: HashSet<ServiceName>,
    },
    /// All services of these origins are among the records before.
    Complete {
        origins: BTreeSet<String>,
    },
}

/// A stored service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EntryRecord {
    /// The highest version ever seen.
    pub(super) highest: VersionNumber,
    /// The origin's name; empty when it is no longer configured.
    pub(super) origin: String,
    /// When the version, or the tombstone, was stored.
    pub(super) since: u64,
    /// The last validation.
    pub(super) validated: u64,
    /// The descriptor's bytes as the origin wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) descriptor: Option<String>,
    /// A hard purge without a validation since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) purged: Option<u64>,
    /// The staged version in the descriptor of which an upstream has given a freshness statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) offered: Option<(Generation, TarballDigest)>,
}

/// What is remembered of an evicted service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GenerationFloor {
    /// The highest version ever seen.
    pub(super) highest: VersionNumber,
    /// A hard purge without a validation since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) purged: Option<u64>,
    /// It was evicted to make room, and there was a version of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_published: bool,
}

/// The state that the records of a journal add up to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct JournalContents {
    pub(super) entries: HashMap<ServiceName, EntryRecord>,
    pub(super) floors: HashMap<ServiceName, GenerationFloor>,
    leases: HashMap<String, (u64, HashSet<ServiceName>)>,
    /// All services of these origins are there.
    pub(super) complete: BTreeSet<String>,
    /// Lines that are damaged, or of another version of this program.
    pub(super) damaged: u64,
}

impl Record {
    /// Appends the line with its end.
    pub(super) fn write_line(&self, into: &mut Vec<u8>) {
        let json = serde_json::to_vec(self).expect("names, numbers and text");
        into.extend_from_slice(checksum(&json).as_bytes());
        into.push(b' ');
        into.extend_from_slice(&json);
        into.push(b'\n');
    }

    /// Parses a line without its end. `None`: it is damaged, or of another version of this program.
    fn parse(line: &[u8]) -> Option<Self> {
        let (sum, json) = line.split_at_checked(CHECKSUM_DIGITS)?;
        let json = json.strip_prefix(b" ")?;
        (checksum(json).as_bytes() == sum).then(|| serde_json::from_slice(json).ok()).flatten()
    }
}

fn checksum(json: &[u8]) -> String {
    blake3::hash(json).to_hex()[..CHECKSUM_DIGITS].to_owned()
}

impl JournalContents {
    /// Applies the next line, without its end.
    pub(super) fn apply_line(&mut self, line: &[u8]) {
        match Record::parse(line) {
            Some(record) => self.apply(record),
            None => self.damaged += 1,
        }
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::Service { service, mut row } => {
                let (earlier, floor) = (self.entries.get(&service), self.floors.get(&service));
                if earlier.map(|row| row.highest).max(floor.map(|floor| floor.highest)) > Some(row.highest) {
                    return;
                }
                let purges = [row.purged, earlier.and_then(|row| row.purged), floor.and_then(|floor| floor.purged)];
                row.purged = purges.into_iter().max().flatten();
                self.floors.remove(&service);
                self.entries.insert(service, row);
            }
            Record::Evicted { service, mut floor } => {
                if self.entries.get(&service).is_some_and(|row| row.highest > floor.highest) {
                    return;
                }
                self.entries.remove(&service);
                if let Some(earlier) = self.floors.get(&service) {
                    floor.highest = floor.highest.max(earlier.highest);
                }
                self.floors.insert(service, floor);
            }
            Record::Validated { service, at } => {
                if let Some(row) = self.entries.get_mut(&service) {
                    row.validated = row.validated.max(at);
                }
            }
            Record::Purged { service, at } => match self.entries.get_mut(&service) {
                Some(row) => row.purged = row.purged.max(Some(at)),
                None => self.floors.entry(service).or_default().purged = Some(at),
            },
            Record::Leased { origin, at, except } => {
                self.leases.insert(origin, (at, except));
            }
            Record::Complete { origins } => self.complete = origins,
        }
    }

    /// Applies the leases after the last record.
    pub(super) fn finish(&mut self) {
        for (service, row) in &mut self.entries {
            if row.descriptor.is_some()
                && let Some((at, except)) = self.leases.get(&row.origin)
                && !except.contains(service)
            {
                row.validated = row.validated.max(*at);
            }
        }
        self.leases.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(generation: u64, validated: u64) -> EntryRecord {
        let descriptor = Some(format!("{{\n\"a\": {generation}}}"));
        let origin = "o:1".to_owned();
        EntryRecord { highest: (generation, 1), origin, since: 1, validated, descriptor, purged: None, offered: None }
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let service = (0u8..4).prop_map(|number| -> ServiceName { format!("s{number}").parse().unwrap() });
        let offered = proptest::option::of((1u64..8, any::<[u8; 32]>()))
            .prop_map(|it| it.map(|(generation, bytes)| (generation, TarballDigest::of(&bytes))));
        (service, 0u8..5, 1u64..8, 0u64..100, offered).prop_map(|(service, kind, generation, at, offered)| match kind {
            0 => Record::Service { service, row: EntryRecord { offered, ..row(generation, at) } },
            1 => Record::Evicted {
                service,
                floor: GenerationFloor { highest: (generation, 1), ..GenerationFloor::default() },
            },
            2 => Record::Validated { service, at },
            3 => Record::Purged { service, at },
            _ => Record::Leased { origin: "o:1".to_owned(), at, except: HashSet::from([service]) },
        })
    }

    fn read(lines: &[Vec<u8>]) -> JournalContents {
        let mut stored = JournalContents::default();
        lines.iter().for_each(|line| stored.apply_line(line));
        stored.finish();
        stored
    }

    fn line(record: &Record) -> Vec<u8> {
        let mut line = Vec::new();
        record.write_line(&mut line);
        assert_eq!(line.pop(), Some(b'\n'));
        assert!(!line.contains(&b'\n'), "a line break in a descriptor ends no line");
        line
    }

    proptest! {
        #[test]
        fn the_highest_generation_survives_damaged_records(
            records in proptest::collection::vec(any_record(), 0..40), damage in proptest::collection::vec(any::<u16>(), 0..6),
        ) {
            let mut lines: Vec<_> = records.iter().map(line).collect();
            for at in &damage {
                if let Some(line) = lines.get_mut(usize::from(*at) % 40) {
                    let middle = usize::from(*at) % line.len();
                    line[middle] ^= 0x15;
                }
            }
            let stored = read(&lines);
            let (mut highest, mut damaged) = (HashMap::new(), 0);
            for (record, line) in records.iter().zip(&lines) {
                let parsed = Record::parse(line);
                prop_assert!(parsed.as_ref().is_none_or(|parsed| parsed == record));
                match (record, parsed) {
                    (Record::Service { service, row: EntryRecord { highest: order, .. } }, Some(_))
                    | (Record::Evicted { service, floor: GenerationFloor { highest: order, .. } }, Some(_)) => {
                        let seen = highest.entry(service).or_insert(*order);
                        *seen = (*seen).max(*order);
                    }
                    (_, Some(_)) => {}
                    (_, None) => damaged += 1,
                }
            }
            prop_assert_eq!(stored.damaged, damaged);
            for (service, order) in highest {
                let row = stored.entries.get(service).map(|row| row.highest);
                let floor = stored.floors.get(service).map(|floor| floor.highest);
                prop_assert!(row.is_none() || floor.is_none());
                prop_assert_eq!(row.or(floor), Some(order));
            }
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            JournalContents::default().apply_line(&bytes);
        }
    }

    #[test]
    fn a_purge_survives_eviction_and_a_lease_has_exceptions() {
        let name = |name: &str| -> ServiceName { name.parse().unwrap() };
        let service = |service: &str, row| Record::Service { service: name(service), row };
        let evicted = GenerationFloor { highest: (7, 1), purged: Some(40), is_published: true };
        let stored = read(&[
            line(&service("a", row(7, 10))),
            line(&Record::Purged { service: name("a"), at: 40 }),
            line(&Record::Evicted { service: name("a"), floor: evicted }),
            line(&service("a", row(8, 20))),
            line(&service("b", row(7, 10))),
            line(&Record::Leased { origin: "o:1".to_owned(), at: 50, except: HashSet::from([name("a")]) }),
        ]);
        let a = &stored.entries[&name("a")];
        assert_eq!((a.highest, a.purged, a.validated), ((8, 1), Some(40), 20));
        let b = &stored.entries[&name("b")];
        assert_eq!((b.purged, b.validated), (None, 50));
    }
}
