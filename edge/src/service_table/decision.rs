//! Which words of origins are taken, and what comes of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weir_shared::descriptor::Descriptor;
use weir_shared::name::ServiceName;

use super::changes::{Change, Outcome, Said, Told};
use super::entry::{Entry, Offer, Usage};
use super::missed::Order;
use super::store::{Record, StoreError};
use super::table::Table;
use crate::clock::Moment;
use crate::origin_client::OriginId;
use crate::version::Version;

/// What the changes of one write come to, before it is on disk.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) records: Vec<(ServiceName, Record)>,
    pub(super) entries: HashMap<ServiceName, Arc<Entry>>,
    /// Those of which nothing was known.
    pub(super) never_held: HashSet<ServiceName>,
}

impl Table {
    /// What becomes of a change, after those that `batch` holds already.
    pub(super) fn decide(&self, change: Change, batch: &mut Batch) -> Result<Outcome, StoreError> {
        let Change { origin, told, at, word } = change;
        match word {
            Said::Current(descriptor) => {
                let held = self.known(&descriptor.publication().service, batch)?;
                self.decide_current(*descriptor, held.as_ref(), origin, told, at, batch)
            }
            Said::Gone(service, generation) => {
                let Some(held) = self.known(&service, batch)? else { return Ok(Outcome::NeverHeld) };
                if told == Told::Pushed && held.origin != origin {
                    return Ok(Outcome::AnotherOrigins);
                }
                if told.is_overtaken_by(&held) || generation.is_some_and(|generation| generation < held.highest.0) {
                    return Ok(Outcome::Held(held));
                }
                let is_tombstone = held.version.is_none() && !held.is_unreadable;
                // One origin's tombstone is not all origins' word: the service may have moved to another.
                if told == Told::Pushed && self.has_several_origins() {
                    return Ok(if is_tombstone { Outcome::Held(held) } else { Outcome::GoneThere });
                }
                if is_tombstone {
                    held.confirmed(at);
                    return Ok(Outcome::Held(held));
                }
                tracing::info!(%service, "a service is gone");
                let record = self.record(held.highest, held.origin, None, at);
                let entry = self.new_entry(&service, None, held.highest, held.origin, Some(&held), at);
                Ok(batch.add(service, record, entry, Some(&held)))
            }
        }
    }

    fn decide_current(
        &self,
        descriptor: Descriptor,
        held: Option<&Arc<Entry>>,
        origin: Option<OriginId>,
        told: Told,
        at: Moment,
        batch: &mut Batch,
    ) -> Result<Outcome, StoreError> {
        let service = descriptor.publication().service.clone();
        if let Some(held) = held {
            let is_another_s = held.version.is_some() && held.origin.is_some() && held.origin != origin;
            if told == Told::Pushed && is_another_s {
                return Ok(Outcome::AnotherOrigins);
            }
            match held.offer(&descriptor) {
                Offer::Regressed if told.is_overtaken_by(held) => return Ok(Outcome::Held(held.clone())),
                Offer::Regressed => {
                    held.doubt(at);
                    // The stream may tell late of what a question has overtaken. The origin is asked, and that decides.
                    if told != Told::Pushed {
                        held.refuse(descriptor.version(), at);
                        self.alarm(&service, origin, &descriptor, held.highest);
                    }
                    return Ok(Outcome::Regressed);
                }
                Offer::Same if held.origin == origin => {
                    if !matches!(told, Told::AskedForForms(_)) {
                        held.confirmed(at);
                    }
                    return Ok(Outcome::Held(held.clone()));
                }
                // The same from another is another's from now on.
                Offer::Same | Offer::Newer => {}
            }
        } else {
            batch.never_held.insert(service.clone());
        }
        let publication = descriptor.publication();
        tracing::info!(
            %service, generation = publication.generation, revision = descriptor.revision(),
            digest = %publication.digest, commit = %publication.commit,
            "a service has a new version"
        );
        let record = self.record(descriptor.version(), origin, Some(descriptor.bytes()), at);
        let highest = descriptor.version();
        let version = Some(Arc::new(Version::new(descriptor)));
        let held = held.map(|held| &**held);
        let mut entry = self.new_entry(&service, version, highest, origin, held, at);
        if let (Told::AskedForForms(_), Some(held)) = (told, held) {
            entry = entry.heard_as(held);
        }
        Ok(batch.add(service, record, entry, held))
    }

    /// An entry of what its origin said at this moment, in the place of `held`.
    fn new_entry(
        &self,
        service: &ServiceName,
        version: Option<Arc<Version>>,
        highest: Order,
        origin: Option<OriginId>,
        held: Option<&Entry>,
        at: Moment,
    ) -> Entry {
        let usage = held.map_or_else(|| Usage::new(Moment::EARLIEST), |held| held.usage.clone());
        let rule = self.rules().of(service).clone();
        let entry = Entry::new(version, highest, origin, rule, usage, at).heard();
        held.iter().for_each(|held| entry.stays_purged_as(held));
        entry
    }

    fn known(&self, service: &ServiceName, batch: &Batch) -> Result<Option<Arc<Entry>>, StoreError> {
        match batch.entries.get(service) {
            Some(entry) => Ok(Some(entry.clone())),
            None => self.read(service),
        }
    }
}

impl Told {
    /// Whether a newer version came while the question was under way: its answer is out of date, and no fault.
    fn is_overtaken_by(self, held: &Entry) -> bool {
        matches!(self, Told::Asked(holding) | Told::AskedForForms(holding) if holding < held.highest)
    }
}

impl Batch {
    /// `entry` takes the place of `held`.
    fn add(&mut self, service: ServiceName, record: Record, entry: Entry, held: Option<&Entry>) -> Outcome {
        let entry = Arc::new(entry);
        self.records.push((service.clone(), record));
        self.entries.insert(service, entry.clone());
        match held {
            Some(held) if held.highest.0 == entry.highest.0 => Outcome::Revised(entry),
            _ => Outcome::Taken(entry),
        }
    }
}
