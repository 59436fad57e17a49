//! Writes the catalog behind updates, in batches.
//!
//! Updates that arrive during a write are written together by the next one. While writes fail, entries are served from
//! memory, and the file is rewritten once the disk works again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use weir_protocol::name::ServiceName;

use super::entry::Entry;
use super::metrics::EvictionReason;
use super::record::{Floor, Record};
use super::rows::Floors;
use super::store::Catalog;
use crate::clock::Moment;

/// How long a tombstone is stored. Afterwards only its generation floor is kept.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a write may take before it counts as failed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The back-off after a failed write.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The most bytes of queued records. Beyond it they are dropped, and the file is rewritten instead.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// The most exceptions in the record of a lease. Beyond it each service is validated by a record of its own.
const MAX_EXCEPTIONS: usize = 1000;

/// The write-behind queue, and the floors of evicted services.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) floors: Floors,
    /// Entries that replace others once they are on disk.
    pub(super) pending: HashMap<ServiceName, Arc<Entry>>,
    /// The next write rewrites the file.
    pub(super) rewrite: bool,
    records: Vec<Record>,
    record_bytes: usize,
    /// The number of changes so far.
    queued: u64,
    /// The last change in a batch.
    taken: u64,
    is_writing: bool,
    /// The start of the write in progress.
    pub(super) write_begun: Option<Moment>,
    retry_at: Option<Moment>,
    /// The heartbeat of each origin that was written last.
    leased_at: HashMap<usize, Moment>,
}

/// The progress of the writer.
#[derive(Debug, Default)]
pub(super) struct WriteState {
    /// The last change that was written, or whose write failed.
    written: u64,
    /// The error of the last write.
    pub(super) failure: Option<String>,
}

/// One write.
struct Batch {
    records: Vec<Record>,
    rewrite: bool,
    pending: HashMap<ServiceName, Arc<Entry>>,
    queued: u64,
    /// The disk failed recently, and is not tried.
    is_paused: bool,
}

impl Ledger {
    pub(super) fn push(&mut self, record: Record) {
        self.record_bytes += match &record {
            Record::Service { row, .. } => 256 + row.descriptor.as_ref().map_or(0, String::len),
            _ => 256,
        };
        self.records.push(record);
        if self.record_bytes > MAX_QUEUED_BYTES {
            self.rewrite = true;
            self.records.clear();
            self.record_bytes = 0;
        }
    }

    /// Whether the write in progress has exceeded its timeout.
    pub(super) fn is_stuck(&self, now: Moment) -> bool {
        self.write_begun.is_some_and(|begun| now.since(begun) >= WRITE_TIMEOUT)
    }

    #[cfg(test)]
    pub(super) fn retry_now(&mut self) {
        self.retry_at = None;
    }

    fn next_batch(&mut self, now: Moment) -> Option<Batch> {
        if !self.rewrite && self.records.is_empty() && self.taken == self.queued {
            return None;
        }
        (self.taken, self.record_bytes) = (self.queued, 0);
        let is_paused = self.retry_at.is_some_and(|at| now < at);
        self.write_begun = (!is_paused).then_some(now);
        Some(Batch {
            records: std::mem::take(&mut self.records),
            rewrite: std::mem::take(&mut self.rewrite),
            pending: self.pending.clone(),
            queued: self.queued,
            is_paused,
        })
    }
}

impl Catalog {
    /// Queues a change and starts the writer.
    pub(super) fn queue(self: &Arc<Self>, ledger: &mut Ledger, change: impl FnOnce(&mut Ledger)) {
        change(ledger);
        ledger.queued += 1;
        self.give_up_when_stuck(ledger);
        if !std::mem::replace(&mut ledger.is_writing, true) {
            // Counted from here, in case no thread becomes free.
            ledger.write_begun = Some(self.clock.now());
            let catalog = self.clone();
            tokio::task::spawn_blocking(move || catalog.write_queued());
        }
    }

    /// Waits until all changes queued so far are on disk.
    ///
    /// # Errors
    /// The write failed: the changes are in memory only.
    pub(crate) async fn durable(&self) -> Result<(), String> {
        let queued = self.ledger().queued;
        let mut writes = self.writes.subscribe();
        loop {
            self.give_up_when_stuck(&mut self.ledger());
            let written = writes.wait_for(|state| state.written >= queued);
            match tokio::time::timeout(WRITE_TIMEOUT, written).await {
                Ok(Ok(state)) => return state.failure.clone().map_or(Ok(()), Err),
                Ok(Err(closed)) => return Err(closed.to_string()),
                Err(_) => {}
            }
        }
    }

    /// Fails a write that hangs, and serves its entries from memory. Should it return later, [`Catalog::publish`]
    /// records its result.
    fn give_up_when_stuck(&self, ledger: &mut Ledger) {
        if !ledger.is_stuck(self.clock.now()) {
            return;
        }
        for (service, entry) in std::mem::take(&mut ledger.pending) {
            self.show(ledger, service, entry);
        }
        self.writes.send_modify(|state| {
            state.written = ledger.queued;
            self.failed(state, format!("it has not come back from a write for {} s", WRITE_TIMEOUT.as_secs()));
        });
    }

    fn write_queued(&self) {
        loop {
            let Some(batch) = ({
                let mut ledger = self.ledger();
                let batch = ledger.next_batch(self.clock.now());
                ledger.is_writing = batch.is_some();
                batch
            }) else {
                return;
            };
            let written = (!batch.is_paused).then(|| self.write(&batch));
            self.publish(batch, written);
        }
    }

    fn write(&self, batch: &Batch) -> io::Result<()> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        if !batch.rewrite && !journal.needs_rewrite() {
            return if batch.records.is_empty() { Ok(()) } else { journal.append(&batch.records) };
        }
        // Later changes are queued behind this rewrite. Entries evicted meanwhile are among the rows, the floors or
        // both.
        let mut rows: HashMap<_, _> = self.rows.all().into_iter().collect();
        rows.extend(batch.pending.clone());
        let floors = self.ledger().floors.all();
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let floors = floors.into_iter().map(|(service, floor)| Record::Evicted { service, floor });
        // Floors come first: the row of a service that returned meanwhile wins.
        let rows = rows.drain().map(|(service, entry)| Record::Service { service, row: self.row(&entry, now, wall) });
        journal.rewrite(floors.chain(rows))
    }

    /// Serves the entries of a batch. `written`: `None` when the disk was not tried.
    fn publish(&self, batch: Batch, written: Option<io::Result<()>>) {
        let mut ledger = self.ledger();
        ledger.write_begun = None;
        for (service, entry) in batch.pending {
            // A hanging write was failed before: this entry, or a newer one, is served already.
            let Some(pending) = ledger.pending.get(&service) else { continue };
            if Arc::ptr_eq(pending, &entry) {
                ledger.pending.remove(&service);
            }
            self.show(&mut ledger, service, entry);
        }
        self.make_room(&mut ledger);
        self.writes.send_modify(|state| {
            // Lower than before when the write had been failed: the rest waits for the next one.
            state.written = batch.queued;
            match written {
                None => {}
                Some(Ok(())) => {
                    if state.failure.take().is_some() {
                        tracing::info!("the catalog can be written again");
                    }
                    ledger.retry_at = None;
                }
                Some(Err(error)) => {
                    self.failed(state, error.to_string());
                    ledger.retry_at = Some(self.clock.now().after(RETRY_PAUSE));
                }
            }
            self.metrics.writable.set(i64::from(state.failure.is_none()));
        });
    }

    fn failed(&self, state: &mut WriteState, error: String) {
        // Logged once per reason, not once per write.
        if state.failure.as_ref() != Some(&error) {
            tracing::warn!(%error, "the disk does not take the catalog, which is served from memory");
        }
        state.failure = Some(error);
        self.metrics.writable.set(0);
    }

    /// Serves an entry.
    pub(super) fn show(&self, ledger: &mut Ledger, service: ServiceName, entry: Arc<Entry>) {
        ledger.floors.remove(&service);
        self.rows.insert(service, entry);
    }

    /// Evicts entries beyond the bounds.
    pub(super) fn make_room(&self, ledger: &mut Ledger) {
        if self.rows.exceed(self.bounds) {
            let coldest = self.rows.coldest(self.bounds);
            coldest.iter().for_each(|service| self.evict(ledger, service, EvictionReason::Capacity));
        }
    }

    fn evict(&self, ledger: &mut Ledger, service: &ServiceName, reason: EvictionReason) {
        let Some(entry) = self.rows.remove(service) else { return };
        let purged = entry.hard_purge().map(|at| at.on_the_wall(self.clock.now(), SystemTime::now()));
        let floor = Floor { highest: entry.highest, purged };
        ledger.floors.insert(service.clone(), floor);
        ledger.push(Record::Evicted { service: service.clone(), floor });
        self.metrics.evicted(reason);
    }

    /// Queues validations for disk, or a rewrite when writes have failed, and evicts expired tombstones. Scans all
    /// entries.
    pub(crate) fn flush(self: &Arc<Self>) {
        let (now, wall, all) = (self.clock.now(), SystemTime::now(), self.rows.all());
        // Updates wait for the queue's lock, so it is not held here.
        let (mut leases, mut validations) = (HashMap::new(), Vec::new());
        for id in 0..self.origins.all().len() {
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
            if entry.take_unwritten() {
                validations.push(Record::Validated { service: service.clone(), at: validated.on_the_wall(now, wall) });
            }
        }
        let mut ledger = self.ledger();
        for (service, entry) in &all {
            if entry.version.is_none() && now.since(entry.since) > TOMBSTONE_LIFETIME {
                self.evict(&mut ledger, service, EvictionReason::TombstoneEnded);
            }
        }
        self.make_room(&mut ledger);
        for (id, (at, except)) in leases {
            if ledger.leased_at.insert(id, at) != Some(at) {
                let origin = self.origins.name(id).unwrap_or_default().to_owned();
                ledger.push(Record::Leased { origin, at: at.on_the_wall(now, wall), except });
            }
        }
        validations.into_iter().for_each(|record| ledger.push(record));
        let has_failed = self.write_failure().is_some();
        self.queue(&mut ledger, |ledger| ledger.rewrite |= has_failed);
    }
}
