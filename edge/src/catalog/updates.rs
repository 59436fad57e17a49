//! Applies updates from origins in order.
//!
//! A new service is served immediately and written behind. A version that replaces another is served once it is on
//! disk: after a crash no client sees an older one.

use std::sync::Arc;
use std::time::SystemTime;

use weir_protocol::descriptor::Descriptor;
use weir_protocol::name::ServiceName;

use super::decision::{Decision, Update, UpdateContent, UpdateSource};
use super::entry::{Entry, Order, PurgeMode, Usage};
use super::record::Record;
use super::store::Catalog;
use super::writer::Ledger;
use crate::clock::Moment;
use crate::origin_client::OriginId;
use crate::version::Version;

/// The outcome of an update.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// This entry is served: the generation is new.
    Taken(Arc<Entry>),
    /// This entry is served: a known generation with other representations, from another origin, removed, or back
    /// again.
    Revised(Arc<Entry>),
    /// The stored entry stays: it was confirmed, or is newer than the update.
    Unchanged(Arc<Entry>),
    /// Rejected: a newer version is known.
    Regressed,
    /// Rejected: the service belongs to another origin.
    OtherOrigin,
    /// The service left its origin and may be at another, which has to be queried.
    AskOthers,
    /// The service is unknown, and nothing is stored.
    Unknown,
}

impl Catalog {
    /// Applies an update. Returns once its result may be served.
    pub(super) async fn apply(self: &Arc<Self>, update: Update) -> Outcome {
        self.apply_all(vec![update]).await.pop().unwrap_or(Outcome::Unknown)
    }

    /// Applies updates in order. Returns once their results may be served.
    pub(crate) async fn apply_all(self: &Arc<Self>, updates: Vec<Update>) -> Vec<Outcome> {
        let (mut outcomes, mut is_pending) = (Vec::with_capacity(updates.len()), false);
        {
            let mut ledger = self.ledger();
            for update in updates {
                let service = update.service().clone();
                outcomes.push(self.apply_to(&mut ledger, service.clone(), update));
                is_pending |= ledger.pending.contains_key(&service);
            }
        }
        if is_pending {
            // A failed write is no error: the entries are served from memory.
            let _ = self.durable().await;
        }
        outcomes
    }

    fn apply_to(self: &Arc<Self>, ledger: &mut Ledger, service: ServiceName, update: Update) -> Outcome {
        let stored = ledger.pending.get(&service).cloned().or_else(|| self.rows.get(&service));
        let floor = ledger.floors.get(&service);
        let known = stored.as_ref().map(|stored| stored.highest).or(floor.map(|floor| floor.highest));
        let decision = update.decide(stored.as_deref(), known, self.has_several_origins());
        let Update { origin, source, at, content } = update;
        let entry = |version: Option<Version>, highest, origin| {
            // A client waits for most queries.
            let requested = if source == UpdateSource::Stream { Moment::EARLIEST } else { at };
            let usage = stored.as_ref().map_or_else(|| Usage::new(requested), |stored| stored.usage.clone());
            let policy = self.policies.of(&service).clone();
            let entry = Entry::new(version.map(Arc::new), highest, origin, policy, usage, at).confirmed_when_taken();
            stored.iter().for_each(|stored| entry.inherit_purges(stored));
            let purged = floor.and_then(|floor| floor.purged).map(|at| self.moment(at));
            purged.into_iter().for_each(|at| entry.purge(PurgeMode::Hard, at));
            Arc::new(entry)
        };
        match (decision, content, &stored) {
            (Decision::Take, UpdateContent::Current(descriptor), _) => {
                log_taken(&descriptor);
                let highest = descriptor.version();
                let entry = entry(Some(Version::new(*descriptor)), highest, origin);
                self.store(ledger, service, entry, known)
            }
            (Decision::Bury, _, Some(stored)) => {
                tracing::info!(%service, "a service is gone");
                let entry = entry(None, stored.highest, stored.origin);
                self.store(ledger, service, entry, known)
            }
            (Decision::Confirm, _, Some(stored)) => {
                stored.confirm(at);
                Outcome::Unchanged(stored.clone())
            }
            (Decision::Overtaken, _, Some(stored)) => Outcome::Unchanged(stored.clone()),
            (Decision::Refuse, UpdateContent::Current(descriptor), stored) => {
                stored.iter().for_each(|stored| stored.suspect(at));
                // The stream may lag behind a query. The follower queries the origin, and its answer decides.
                if source != UpdateSource::Stream {
                    stored.iter().for_each(|stored| stored.refuse(descriptor.publication().generation));
                    self.alarm(&service, origin, &descriptor, known.unwrap_or_default());
                }
                Outcome::Regressed
            }
            (Decision::OtherOrigin, ..) => Outcome::OtherOrigin,
            (Decision::AskOthers, ..) => Outcome::AskOthers,
            _ => Outcome::Unknown,
        }
    }

    /// Stores an entry. `known`: the highest version of the service so far.
    fn store(
        self: &Arc<Self>,
        ledger: &mut Ledger,
        service: ServiceName,
        entry: Arc<Entry>,
        known: Option<Order>,
    ) -> Outcome {
        let row = self.row(&entry, self.clock.now(), SystemTime::now());
        let record = Record::Service { service: service.clone(), row };
        self.queue(ledger, |ledger| ledger.push(record));
        match known {
            None => {
                self.show(ledger, service, entry.clone());
                self.make_room(ledger);
            }
            // The disk hangs: the entry is kept in memory only.
            Some(_) if ledger.is_stuck(self.clock.now()) => {
                // A queued older entry must not replace it.
                ledger.pending.remove(&service);
                self.show(ledger, service, entry.clone());
            }
            Some(_) => drop(ledger.pending.insert(service, entry.clone())),
        }
        match known {
            Some((generation, _)) if generation == entry.highest.0 => Outcome::Revised(entry),
            _ => Outcome::Taken(entry),
        }
    }

    fn alarm(&self, service: &ServiceName, origin: Option<OriginId>, offered: &Descriptor, highest: Order) {
        self.metrics.regressions.inc();
        let (generation, revision) = offered.version();
        tracing::error!(
            %service, origin = origin.and_then(|id| self.origins.name(id)), generation, revision,
            highest_generation = highest.0, highest_revision = highest.1,
            "an origin offers an older version than was seen before; it is refused and what is stored stays \
             (see generation_floor in the origin's configuration)"
        );
    }
}

fn log_taken(descriptor: &Descriptor) {
    let publication = descriptor.publication();
    tracing::info!(
        service = %publication.service, generation = publication.generation, revision = descriptor.revision(),
        digest = %publication.digest, commit = %publication.commit,
        "a service has a new version"
    );
}
