//! Writes the catalog behind updates, in batches.
//!
//! Updates that arrive during a write are written together by the next one. While writes fail, entries are served from
//! memory, and the file is rewritten once the disk works again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use weir_protocol::name::ServiceName;

use super::changes::CatalogChange;
use super::entry::Entry;
use super::metrics::EvictionReason;
use super::record::{GenerationFloor, Record};
use super::store::Catalog;
use super::write_queue::{WRITE_TIMEOUT, WriteBatch, WriteQueue, WriteState};

/// How long a tombstone is stored. Afterwards only its generation floor is kept.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// The back-off after a failed write.
const RETRY_BACKOFF: Duration = Duration::from_secs(5);

/// The most exceptions in the record of a lease. Beyond it each service is validated by a record of its own.
const MAX_EXCEPTIONS: usize = 1000;

impl Catalog {
    /// Queues a change and starts the writer.
    pub(super) fn enqueue(self: &Arc<Self>, queue: &mut WriteQueue, change: impl FnOnce(&mut WriteQueue)) {
        change(queue);
        queue.queued += 1;
        self.fail_hanging_write(queue);
        if !std::mem::replace(&mut queue.is_writing, true) {
            // Counted from here, in case no thread becomes free.
            queue.write_started = Some(self.clock.now());
            let catalog = self.clone();
            tokio::task::spawn_blocking(move || catalog.write_queued());
        }
    }

    /// Waits until all changes queued so far are on disk.
    ///
    /// # Errors
    /// The write failed: the changes are in memory only.
    pub(crate) async fn durable(&self) -> Result<(), String> {
        let queued = self.write_queue().queued;
        let mut writes = self.writes.subscribe();
        loop {
            self.fail_hanging_write(&mut self.write_queue());
            let written = writes.wait_for(|state| state.written >= queued);
            match tokio::time::timeout(WRITE_TIMEOUT, written).await {
                Ok(Ok(state)) => return state.failure.clone().map_or(Ok(()), Err),
                Ok(Err(closed)) => return Err(closed.to_string()),
                Err(_) => {}
            }
        }
    }

    /// Waits until the last write has failed.
    pub(crate) async fn write_failed(&self) {
        let _ = self.writes.subscribe().wait_for(|state| state.failure.is_some()).await;
    }

    /// Fails a write that hangs, and serves its entries from memory. Should it return later, [`Catalog::complete`]
    /// records its result.
    fn fail_hanging_write(&self, queue: &mut WriteQueue) {
        if !queue.is_hanging(self.clock.now()) {
            return;
        }
        for (service, entry) in std::mem::take(&mut queue.pending) {
            self.serve(queue, service, entry);
        }
        self.writes.send_modify(|state| {
            state.written = queue.queued;
            self.failed(state, format!("a write has not returned for {} s", WRITE_TIMEOUT.as_secs()));
        });
    }

    fn write_queued(&self) {
        loop {
            let Some(batch) = ({
                let mut queue = self.write_queue();
                let batch = queue.next_batch(self.clock.now());
                queue.is_writing = batch.is_some();
                batch
            }) else {
                return;
            };
            let written = (!batch.is_backing_off).then(|| self.write(&batch));
            self.complete(batch, written);
        }
    }

    fn write(&self, batch: &WriteBatch) -> io::Result<()> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        if !batch.rewrite && !journal.needs_rewrite() {
            return if batch.records.is_empty() { Ok(()) } else { journal.append(&batch.records) };
        }
        // Before the entries: they are all there.
        let origins = self.complete_origins();
        // Later changes are queued behind this rewrite. Entries evicted meanwhile are among the entries, the floors or
        // both.
        let mut entries: HashMap<_, _> = self.entries.all().into_iter().collect();
        entries.extend(batch.pending.clone());
        let floors = self.write_queue().floors.all();
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let floors = floors.into_iter().map(|(service, floor)| Record::Evicted { service, floor });
        // GenerationFloors come first: the row of a service that returned meanwhile wins.
        let entries =
            entries.drain().map(|(service, entry)| Record::Service { service, row: self.row(&entry, now, wall) });
        journal.rewrite(floors.chain(entries).chain([Record::Complete { origins }]))
    }

    /// Serves the entries of a batch. `written`: `None` when the disk was not tried.
    fn complete(&self, batch: WriteBatch, written: Option<io::Result<()>>) {
        let mut queue = self.write_queue();
        queue.write_started = None;
        for (service, entry) in batch.pending {
            // A hanging write was failed before: this entry, or a newer one, is served already.
            let Some(pending) = queue.pending.get(&service) else { continue };
            if Arc::ptr_eq(pending, &entry) {
                queue.pending.remove(&service);
            }
            self.serve(&mut queue, service, entry);
        }
        self.evict_excess(&mut queue);
        self.writes.send_modify(|state| {
            // Lower than before when the write had been failed: the rest waits for the next one.
            state.written = batch.queued;
            match written {
                None => {}
                Some(Ok(())) => {
                    if state.failure.take().is_some() {
                        tracing::info!("the catalog is written to disk again");
                    }
                    queue.retry_at = None;
                }
                Some(Err(error)) => {
                    self.failed(state, error.to_string());
                    queue.retry_at = Some(self.clock.now().after(RETRY_BACKOFF));
                }
            }
            self.metrics.writable.set(i64::from(state.failure.is_none()));
        });
    }

    fn failed(&self, state: &mut WriteState, error: String) {
        // Logged once per reason, not once per write.
        if state.failure.as_ref() != Some(&error) {
            tracing::warn!(%error, "the catalog cannot be written; it is served from memory");
        }
        state.failure = Some(error);
        self.metrics.writable.set(0);
    }

    /// Serves an entry.
    pub(super) fn serve(&self, queue: &mut WriteQueue, service: ServiceName, entry: Arc<Entry>) {
        queue.floors.remove(&service);
        let (before, now) = (self.entries.get(&service), self.clock.now());
        let is_same_row = before.is_some_and(|before| before.has_version_of(&entry) && !self.is_expired(&before, now));
        self.entries.insert(service.clone(), entry);
        // The same version from another origin is no news for agents.
        if !is_same_row {
            self.changes.send_row(&service);
        }
        self.changes.send(|| Some(CatalogChange::Service(service)));
    }

    /// Evicts entries beyond the bounds.
    pub(super) fn evict_excess(&self, queue: &mut WriteQueue) {
        if self.entries.exceeds(self.bounds) {
            let least_recently_requested = self.entries.least_recently_requested(self.bounds);
            least_recently_requested.iter().for_each(|service| self.evict(queue, service, EvictionReason::Capacity));
        }
    }

    fn evict(&self, queue: &mut WriteQueue, service: &ServiceName, reason: EvictionReason) {
        let Some(entry) = self.entries.remove(service) else { return };
        let purged = entry.pending_hard_purge().map(|at| at.to_unix_millis(self.clock.now(), SystemTime::now()));
        let floor = GenerationFloor { highest: entry.highest, purged, is_published: entry.version.is_some() };
        queue.floors.insert(service.clone(), floor);
        queue.push(Record::Evicted { service: service.clone(), floor });
        self.metrics.evicted(reason);
    }

    /// Queues validations for disk, or a rewrite when writes have failed, and evicts expired tombstones. Scans all
    /// entries.
    pub(crate) fn flush(self: &Arc<Self>) {
        let (now, wall, all) = (self.clock.now(), SystemTime::now(), self.entries.all());
        // Updates wait for the queue's lock, so it is not held here.
        let (mut leases, mut validations) = (HashMap::new(), Vec::new());
        for id in 0..self.origins.count() {
            let uncovered = all.iter().filter(|(_, entry)| self.is_uncovered(entry, id));
            let except: HashSet<_> = uncovered.map(|(service, _)| service.clone()).take(MAX_EXCEPTIONS + 1).collect();
            if let (Some(at), true) = (self.lease(id).last_heartbeat(), except.len() <= MAX_EXCEPTIONS) {
                leases.insert(id, (at, except));
            }
        }
        for (service, entry) in &all {
            let origin = entry.origin.filter(|id| leases.contains_key(id) && entry.version.is_some());
            if origin.is_some_and(|id| !self.is_uncovered(entry, id)) {
                continue;
            }
            let validated = self.validated(entry);
            if validated > entry.last_validated() {
                entry.validate(validated);
            }
            if entry.take_dirty() {
                validations
                    .push(Record::Validated { service: service.clone(), at: validated.to_unix_millis(now, wall) });
            }
        }
        let mut queue = self.write_queue();
        for (service, entry) in &all {
            if entry.version.is_none() && now.since(entry.since) > TOMBSTONE_LIFETIME {
                self.evict(&mut queue, service, EvictionReason::TombstoneEnded);
            }
        }
        self.evict_excess(&mut queue);
        for (id, (at, except)) in leases {
            if queue.written_heartbeats.insert(id, at) != Some(at) {
                let origin = self.origins.name(id).unwrap_or_default();
                queue.push(Record::Leased { origin, at: at.to_unix_millis(now, wall), except });
            }
        }
        validations.into_iter().for_each(|record| queue.push(record));
        let origins = self.complete_origins();
        if queue.written_complete != origins {
            queue.written_complete = origins.clone();
            queue.push(Record::Complete { origins });
        }
        let has_failed = self.write_failure().is_some();
        self.enqueue(&mut queue, |queue| queue.rewrite |= has_failed);
    }
}
