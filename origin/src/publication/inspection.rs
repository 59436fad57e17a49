//! The whole state, row by row: what cannot be read, and what contradicts the rest. And what of that can be mended
//! without a blob.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use redb::{ReadTransaction, ReadableTable};
use weir_shared::access_list::AccessList;
use weir_shared::descriptor::{Descriptor, Generation, Representation};
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::name::ServiceName;
use weir_shared::token::PublicKey;

use super::contents::CONTENT;
use super::decision::Content;
use super::history::{self, HISTORY};
use super::pin::PINS;
use super::references::{BLOBS, BYTES, NAMES, TOTALS, UNNAMED};
use super::rows::{CURRENT, GENERATION, SUPERSEDED, parse, parse_superseded};
use super::signatures::{KEYS, SIGNATURES};
use super::state::{State, StateError};
use super::tables::{AGES, Tables};

/// What the state holds.
#[derive(Debug, Default)]
pub(crate) struct Inspected {
    /// All versions that can be read, the current ones first.
    pub(crate) versions: Vec<Version>,
    /// Rows that cannot be read.
    pub(crate) unreadable: Vec<UnreadableRow>,
    /// Services whose last generation is lower than one that was published, with that one: the next publication could
    /// repeat it.
    pub(crate) behind: Vec<(String, Generation)>,
    /// Versions that do not bear the signatures of the keys that everything is signed with.
    pub(crate) unsigned: Vec<(ServiceName, TarballDigest)>,
    /// The index of who names what, or that of ages, is not that of the versions.
    pub(crate) has_wrong_index: bool,
    /// Blobs that nothing names and that are known to linger.
    pub(crate) lingering: BTreeSet<BlobDigest>,
}

/// A row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnreadableRow {
    pub(crate) kind: RowKind,
    /// Of what, in words.
    pub(crate) of: String,
    pub(crate) cause: String,
}

/// What a row that cannot be read would say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// What a service is at.
    Current,
    /// What it was at.
    Superseded,
    /// That it was at something.
    History,
    /// What a build found.
    Content,
    /// That a service is pinned.
    Pin,
}

/// A version, as far as its blobs go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) service: ServiceName,
    pub(crate) digest: TarballDigest,
    pub(crate) is_current: bool,
    pub(crate) forms: Vec<Representation>,
}

impl Version {
    fn new(descriptor: &Descriptor, is_current: bool) -> Self {
        let publication = descriptor.publication();
        Self {
            service: publication.service.clone(),
            digest: publication.digest,
            is_current,
            forms: descriptor.representations().to_vec(),
        }
    }
}

/// Who names a blob: blob, service, digest.
type Named = ([u8; 32], String, [u8; 32]);

impl State {
    /// Reads every row.
    pub(crate) fn inspect(&self) -> Result<Inspected, StateError> {
        self.read(|transaction| {
            let mut look = Look { keys: signing_keys(transaction)?, ..Look::default() };
            for row in transaction.open_table(CURRENT)?.iter()? {
                let (service, bytes) = row?;
                let service = service.value();
                match parse(service, bytes.value()) {
                    Ok(descriptor) => look.version(&descriptor, true),
                    Err(error) => look.unreadable(RowKind::Current, format!("service {service}"), &error),
                }
            }
            for row in transaction.open_table(SUPERSEDED)?.iter()? {
                let (key, value) = row?;
                let ((service, digest), (at, bytes)) = (key.value(), value.value());
                look.ages.insert((at, service.to_owned(), *digest));
                match parse_superseded(service, digest, bytes) {
                    Ok(descriptor) => look.version(&descriptor, false),
                    Err(error) => {
                        let digest = TarballDigest::from(blake3::Hash::from_bytes(*digest));
                        look.unreadable(RowKind::Superseded, format!("{service} {digest}"), &error);
                    }
                }
            }
            for row in transaction.open_table(HISTORY)?.iter()? {
                let (key, value) = row?;
                let (service, generation) = key.value();
                match history::parse_entry(generation, value.value()) {
                    Ok(_) => look.generation(service, generation),
                    Err(error) => {
                        look.unreadable(RowKind::History, format!("the history of {service} at {generation}"), &error);
                    }
                }
            }
            for row in transaction.open_table(CONTENT)?.iter()? {
                let (key, value) = row?;
                if let Err(error) = parse_content(value.value()) {
                    let key = blake3::Hash::from_bytes(*key.value()).to_hex();
                    look.unreadable(RowKind::Content, format!("content {key}"), &error);
                }
            }
            for row in transaction.open_table(PINS)?.iter()? {
                let (service, _) = row?;
                if let Err(error) = service.value().parse::<ServiceName>() {
                    look.unreadable(RowKind::Pin, format!("the pin of {}", service.value()), &error);
                }
            }
            look.finish(transaction)
        })
    }

    /// Drops the rows that cannot be read, lifts the last generations that are too low, writes the indices anew, and has
    /// everything signed anew by the next [`State::sign_with`] when something is not signed as it should be. A service
    /// whose current row goes is published anew by the origin's next start, under a higher generation.
    pub(crate) fn mend_rows(&self, inspected: &Inspected, now: SystemTime) -> Result<(), StateError> {
        self.write(|transaction| {
            let mut tables = Tables::open(transaction)?;
            tables.drop_unreadable()?;
            transaction.open_table(CONTENT)?.retain(|_, json| parse_content(json).is_ok())?;
            for (service, generation) in &inspected.behind {
                tables.generations.insert(service.as_str(), generation)?;
            }
            tables.index(now)?;
            if !inspected.unsigned.is_empty() {
                transaction.open_table(SIGNATURES)?.remove(KEYS)?;
            }
            Ok(())
        })
    }
}

/// What was seen so far.
#[derive(Default)]
struct Look {
    found: Inspected,
    /// The keys that everything is signed with.
    keys: Vec<PublicKey>,
    generations: BTreeMap<String, Generation>,
    ages: BTreeSet<(u64, String, [u8; 32])>,
}

impl Look {
    fn unreadable(&mut self, kind: RowKind, of: String, cause: &impl ToString) {
        self.found.unreadable.push(UnreadableRow { kind, of, cause: cause.to_string() });
    }

    fn generation(&mut self, service: &str, generation: Generation) {
        let highest = self.generations.entry(service.to_owned()).or_default();
        *highest = generation.max(*highest);
    }

    fn version(&mut self, descriptor: &Descriptor, is_current: bool) {
        let version = Version::new(descriptor, is_current);
        self.generation(version.service.as_str(), descriptor.publication().generation);
        if !is_signed(descriptor, &self.keys) {
            self.found.unsigned.push((version.service.clone(), version.digest));
        }
        self.found.versions.push(version);
    }

    fn finish(mut self, transaction: &ReadTransaction) -> Result<Inspected, StateError> {
        let generations = transaction.open_table(GENERATION)?;
        for (service, highest) in self.generations {
            let last = generations.get(service.as_str())?.map_or(0, |last| last.value());
            if last < highest {
                self.found.behind.push((service, highest));
            }
        }
        let (mut names, mut bytes) = (BTreeMap::<Named, u64>::new(), BTreeMap::new());
        for version in &self.found.versions {
            for form in &version.forms {
                let blob = *form.digest.as_bytes();
                names.insert((blob, version.service.to_string(), *version.digest.as_bytes()), form.size);
                bytes.insert(blob, form.size);
            }
        }
        let mut named = BTreeMap::new();
        for row in transaction.open_table(NAMES)?.iter()? {
            let (key, size) = row?;
            let (blob, service, digest) = key.value();
            named.insert((*blob, service.to_owned(), *digest), size.value());
        }
        let mut ages = BTreeSet::new();
        for row in transaction.open_table(AGES)?.iter()? {
            let (key, _) = row?;
            let (at, service, digest) = key.value();
            ages.insert((at, service.to_owned(), *digest));
        }
        let totals = transaction.open_table(TOTALS)?;
        let total = |what| Ok::<_, StateError>(totals.get(what)?.map_or(0, |total| total.value()));
        // Another version of a service may name a blob with another size, and then it is not known which one was counted.
        let totals_are_right = total(BLOBS)? == bytes.len() as u64 && total(BYTES)? == bytes.values().sum::<u64>();
        self.found.has_wrong_index = names != named || ages != self.ages || !totals_are_right;
        for row in transaction.open_table(UNNAMED)?.iter()? {
            self.found.lingering.insert(blake3::Hash::from_bytes(*row?.0.value()).into());
        }
        Ok(self.found)
    }
}

pub(super) fn parse_content(json: &[u8]) -> Result<Content, serde_json::Error> {
    serde_json::from_slice(json)
}

fn signing_keys(transaction: &ReadTransaction) -> Result<Vec<PublicKey>, StateError> {
    let signatures = match transaction.open_table(SIGNATURES) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        signatures => signatures?,
    };
    Ok(signatures.get(KEYS)?.map(|row| keys_of(row.value())).unwrap_or_default())
}

/// The keys of these lines. Lines that cannot be read are not those of the configuration: the next start signs everything
/// anew.
pub(super) fn keys_of(lines: &str) -> Vec<PublicKey> {
    let mut keys = AccessList::default();
    keys.add_key_file(lines).map_or(Vec::new(), |()| keys.keys().cloned().collect())
}

/// Whether a version bears a signature of each of these keys, and says the same in it as beside it.
pub(super) fn is_signed(descriptor: &Descriptor, keys: &[PublicKey]) -> bool {
    let publication = descriptor.publication();
    keys.iter().all(|key| {
        let signed = descriptor.verified_publication(&publication.service, std::slice::from_ref(key));
        signed.is_ok_and(|signed| signed == *publication)
    })
}
