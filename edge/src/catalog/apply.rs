//! Applies updates from origins in order.
//!
//! A new service is served immediately and written behind. A version that replaces another is served once it is on
//! disk: after a crash no client sees an older one.

use std::sync::Arc;
use std::time::SystemTime;

use weir_cache::OriginId;
use weir_cache::clock::Moment;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::name::ServiceName;

use super::changes::CatalogChange;
use super::entry::{Entry, LastRequest, PurgeMode, VersionNumber};
use super::record::{GenerationFloor, Record};
use super::store::Catalog;
use super::update::{Sender, Update, UpdateContent, UpdateDecision, UpdateSource};
use super::write_queue::WriteQueue;
use crate::version::Version;

/// The outcome of an update.
#[derive(Debug, Clone)]
pub(crate) enum UpdateOutcome {
    /// This entry is served: the generation is new.
    Stored(Arc<Entry>),
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
    QueryOthers,
    /// The service is unknown, and nothing is stored.
    Ignored,
}

impl Catalog {
    /// Applies an update. Returns once its result may be served.
    pub(super) async fn apply(self: &Arc<Self>, update: Update) -> UpdateOutcome {
        self.apply_all(vec![update]).await.pop().unwrap_or(UpdateOutcome::Ignored)
    }

    /// Applies updates in order. Returns once their results may be served.
    pub(crate) async fn apply_all(self: &Arc<Self>, updates: Vec<Update>) -> Vec<UpdateOutcome> {
        let (mut outcomes, mut is_pending) = (Vec::with_capacity(updates.len()), false);
        {
            let mut queue = self.write_queue();
            for update in updates {
                let service = update.service().clone();
                outcomes.push(self.apply_to(&mut queue, service.clone(), update));
                is_pending |= queue.pending.contains_key(&service);
            }
        }
        if is_pending {
            // A failed write is no error: the entries are served from memory.
            let _ = self.durable().await;
        }
        outcomes
    }

    fn apply_to(self: &Arc<Self>, queue: &mut WriteQueue, service: ServiceName, update: Update) -> UpdateOutcome {
        let stored = queue.pending.get(&service).cloned().or_else(|| self.entries.get(&service));
        let floor = queue.floors.get(&service);
        let known = stored.as_ref().map(|stored| stored.highest).or(floor.map(|floor| floor.highest));
        let sender = self.sender(&update, stored.as_deref());
        let is_only_cluster = sender.is_only_cluster;
        // A service may come from another cluster, whose stream announced it before it was accepted from there.
        let is_expected_push = known.is_none() || sender.shares_cluster;
        let decision = update.decide(stored.as_deref(), known, sender);
        let Update { origin, source, at, content } = update;
        let is_stream = source == UpdateSource::Stream;
        if let (true, UpdateContent::Current(descriptor)) = (is_stream, &content) {
            queue.unannounced.announced(&service, descriptor.version());
        }
        let entry = |version: Option<Version>, highest, origin| {
            let earlier = stored.as_ref().and_then(|stored| stored.version.as_deref());
            let version = version.map(|version| Arc::new(version.offered_like(earlier)));
            // A client waits for most queries.
            let requested = if is_stream { Moment::EARLIEST } else { at };
            let last_request =
                stored.as_ref().map_or_else(|| LastRequest::new(requested), |stored| stored.last_request.clone());
            let policy = self.policies.of(&service).clone();
            let entry = Entry::new(version, highest, origin, policy, last_request, at);
            let entry = entry.confirmed_when_stored();
            if is_stream {
                entry.announce(at);
            }
            stored.iter().for_each(|stored| entry.inherit_purges(stored));
            let purged = floor.and_then(|floor| floor.purged).map(|at| self.moment(at));
            purged.into_iter().for_each(|at| entry.purge(PurgeMode::Hard, at));
            Arc::new(entry)
        };
        match (decision, content, &stored) {
            (UpdateDecision::Store, UpdateContent::Current(descriptor), _) => {
                // The same version from another origin is no news.
                let highest = descriptor.version();
                if known.is_none_or(|(generation, _)| generation != highest.0) {
                    log_new_version(&descriptor);
                    let followed = origin.filter(|id| !is_stream && is_expected_push && self.lease(*id).is_in_sync());
                    let now = self.clock.now();
                    followed.into_iter().for_each(|id| queue.unannounced.found(service.clone(), id, highest, now));
                }
                let entry = entry(Some(Version::new(*descriptor)), highest, origin);
                let is_same = |stored: &&Arc<Entry>| is_stream && stored.highest == highest && self.is_covered(stored);
                stored.iter().filter(is_same).for_each(|stored| entry.remember_announcement(stored));
                self.store(queue, service, entry, known)
            }
            (UpdateDecision::StoreTombstone, UpdateContent::Gone(_, generation), Some(stored)) => {
                tracing::info!(%service, "a service was removed");
                let highest = stored.highest.max((generation.unwrap_or_default(), 0));
                let entry = entry(None, highest, origin.or(stored.origin));
                self.store(queue, service, entry, known)
            }
            (UpdateDecision::Confirm, _, Some(stored)) => {
                self.confirm(service, stored, at, is_stream);
                UpdateOutcome::Unchanged(stored.clone())
            }
            (UpdateDecision::Superseded, _, Some(stored)) => UpdateOutcome::Unchanged(stored.clone()),
            (UpdateDecision::Reject, UpdateContent::Current(descriptor), stored) => {
                stored.iter().for_each(|stored| self.suspect(stored, at));
                // The stream may lag behind a query. The follower queries the origin, and its answer decides.
                if !is_stream {
                    stored.iter().for_each(|stored| stored.reject(descriptor.publication().generation));
                    self.report_regression(&service, origin, &descriptor, known.unwrap_or_default());
                }
                UpdateOutcome::Regressed
            }
            (UpdateDecision::RejectOtherOrigin, ..) => UpdateOutcome::OtherOrigin,
            (UpdateDecision::Ignore, UpdateContent::Gone(_, generation), _) => {
                // Another cluster may have it, but then an answer to a query says so.
                self.evicted_is_gone(queue, service, (source, generation), !is_stream || is_only_cluster);
                UpdateOutcome::Ignored
            }
            (UpdateDecision::QueryOthers, ..) => UpdateOutcome::QueryOthers,
            _ => UpdateOutcome::Ignored,
        }
    }

    /// Records that an origin has the stored version. `is_announced`: its stream says so.
    fn confirm(&self, service: ServiceName, stored: &Entry, at: Moment, is_announced: bool) {
        let was_expired = self.is_expired(stored, self.clock.now());
        stored.confirm(at);
        if was_expired {
            self.changes.send_row(&service);
        }
        if is_announced {
            let is_news = !self.is_covered(stored);
            stored.announce(at);
            self.changes.send(|| is_news.then_some(CatalogChange::Service(service)));
        }
    }

    /// Records that a service without an entry has ended, if that is news. `is_proved`: no other origin may have it.
    fn evicted_is_gone(
        self: &Arc<Self>,
        queue: &mut WriteQueue,
        service: ServiceName,
        (source, generation): (UpdateSource, Option<Generation>),
        is_proved: bool,
    ) {
        // The news of a move come in any order, and a query may have begun before the present version came.
        let is_news = |floor: &GenerationFloor| {
            let asked_for = match source {
                UpdateSource::Query(asked_for) => asked_for,
                UpdateSource::Stream => floor.highest,
            };
            floor.is_published && generation.unwrap_or(floor.highest.0).min(asked_for.0) >= floor.highest.0
        };
        let Some(floor) = queue.floors.get(&service).filter(is_news) else { return };
        if is_proved {
            let floor = GenerationFloor { is_published: false, ..floor };
            queue.floors.insert(service.clone(), floor);
            self.enqueue(queue, |queue| queue.push(Record::Evicted { service: service.clone(), floor }));
            self.entries.names.add(&service);
            self.changes.send_row(&service);
            self.changes.send(|| Some(CatalogChange::Service(service)));
        }
        // Edges behind this one may have kept it, and there is no entry to tell them of.
        self.suspected();
    }

    fn sender(&self, update: &Update, entry: Option<&Entry>) -> Sender {
        let pair = entry.and_then(|entry| entry.origin).zip(update.origin);
        Sender {
            shares_cluster: pair.is_some_and(|(owner, sender)| self.origins.share_a_cluster(owner, sender)),
            has_living_owner: pair.is_some_and(|(owner, sender)| owner != sender && self.lease(owner).is_in_sync()),
            is_only_cluster: self.origins.is_one_cluster(),
        }
    }

    /// Stores an entry. `known`: the highest version of the service so far.
    fn store(
        self: &Arc<Self>,
        queue: &mut WriteQueue,
        service: ServiceName,
        entry: Arc<Entry>,
        known: Option<VersionNumber>,
    ) -> UpdateOutcome {
        let row = self.row(&entry, self.clock.now(), SystemTime::now());
        let record = Record::Service { service: service.clone(), row };
        self.enqueue(queue, |queue| queue.push(record));
        match known {
            None => {
                self.serve(queue, service, entry.clone());
                self.evict_excess(queue);
            }
            // The disk hangs: the entry is kept in memory only.
            Some(_) if queue.is_hanging(self.clock.now()) => {
                // A queued older entry must not replace it.
                queue.pending.remove(&service);
                self.serve(queue, service, entry.clone());
            }
            Some(_) => drop(queue.pending.insert(service, entry.clone())),
        }
        match known {
            Some((generation, _)) if generation == entry.highest.0 => UpdateOutcome::Revised(entry),
            _ => UpdateOutcome::Stored(entry),
        }
    }

    fn report_regression(
        &self,
        service: &ServiceName,
        origin: Option<OriginId>,
        offered: &Descriptor,
        highest: VersionNumber,
    ) {
        self.metrics.regressions.inc();
        let (generation, descriptor_revision) = offered.version();
        tracing::error!(
            %service, origin = origin.and_then(|id| self.origins.name(id)), generation, descriptor_revision,
            highest_generation = highest.0, highest_descriptor_revision = highest.1,
            "an origin offers an older version than was seen before; the stored version stays in use \
             (see generation_floor in the origin's configuration)"
        );
    }
}

fn log_new_version(descriptor: &Descriptor) {
    let publication = descriptor.publication();
    tracing::info!(
        service = %publication.service, generation = publication.generation,
        descriptor_revision = descriptor.revision(), digest = %publication.digest, commit = publication.commit.as_ref().map(tracing::field::display), revision_id = %publication.revision_id,
        "a service has a new version"
    );
}
