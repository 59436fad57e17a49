//! Writes the catalog behind those who change it, many changes at a time.
//!
//! What arrives during one write is written by the next one, all together. What a disk does not take is served from
//! memory: the highest generations are remembered until the process ends, and the file is written whole once the disk
//! takes it again.

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

/// How long a tombstone is stored. Afterwards only its generation is remembered.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a write may take before it counts as failed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after a failed write the disk is not tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Bytes of records that wait to be appended. Beyond it they are dropped, and the file is written whole instead.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// Services that a lease on disk excepts at the most. When there are more, each service is validated by itself.
const MAX_EXCEPTIONS: usize = 1000;

/// What was decided and is not on disk yet, and what was evicted.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) floors: Floors,
    /// Entries that take the place of others once they are on disk.
    pub(super) pending: HashMap<ServiceName, Arc<Entry>>,
    /// The file is written whole next, for whatever reason.
    pub(super) rewrite: bool,
    records: Vec<Record>,
    record_bytes: usize,
    /// Grows with each change.
    queued: u64,
    /// The last change that the writer has taken.
    taken: u64,
    is_writing: bool,
    /// Since when the disk has been writing; `None` while it is not.
    pub(super) write_begun: Option<Moment>,
    retry_at: Option<Moment>,
    /// The heartbeat of each origin that was written last.
    leased_at: HashMap<usize, Moment>,
}

/// How far the file is.
#[derive(Debug, Default)]
pub(super) struct WriteState {
    /// All changes up to this one were written, or could not be.
    written: u64,
    /// Why the last write failed.
    pub(super) failure: Option<String>,
}

/// What is written at a time.
struct Batch {
    records: Vec<Record>,
    rewrite: bool,
    pending: HashMap<ServiceName, Arc<Entry>>,
    queued: u64,
    /// The disk failed not long ago, and is not tried.
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

    /// Whether the disk has not come back from a write for so long that nobody waits for it.
    pub(super) fn is_stuck(&self, now: Moment) -> bool {
        self.write_begun.is_some_and(|begun| now.since(begun) >= WRITE_TIMEOUT)
    }

    /// The disk is tried again at the next change.
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
    /// Changes what is to be written, and has it written.
    pub(super) fn queue(self: &Arc<Self>, ledger: &mut Ledger, change: impl FnOnce(&mut Ledger)) {
        change(ledger);
        ledger.queued += 1;
        self.give_up_when_stuck(ledger);
        if !std::mem::replace(&mut ledger.is_writing, true) {
            // From here on: also when no thread becomes free for it.
            ledger.write_begun = Some(self.clock.now());
            let catalog = self.clone();
            tokio::task::spawn_blocking(move || catalog.write_queued());
        }
    }

    /// Waits until everything that was queued before is on disk.
    ///
    /// # Errors
    /// The disk did not take it: it is remembered in memory.
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

    /// A write that does not come back has failed: what waited for it is served from memory. Should it come back after all,
    /// [`Catalog::publish`] says how it went.
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
        // Whatever changes from now on is queued behind this. What is evicted meanwhile is among the rows, the floors or both.
        let mut rows: HashMap<_, _> = self.rows.all().into_iter().collect();
        rows.extend(batch.pending.clone());
        let floors = self.ledger().floors.all();
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let floors = floors.into_iter().map(|(service, floor)| Record::Evicted { service, floor });
        // A floor that is raised just now stands before the row that takes its place.
        let rows = rows.drain().map(|(service, entry)| Record::Service { service, row: self.row(&entry, now, wall) });
        journal.rewrite(floors.chain(rows))
    }

    /// Serves what waited for the disk. `written` is `None` when the disk was not tried.
    fn publish(&self, batch: Batch, written: Option<io::Result<()>>) {
        let mut ledger = self.ledger();
        ledger.write_begun = None;
        for (service, entry) in batch.pending {
            // Nobody has waited for a disk that was stuck: this, or a newer one, is served already.
            let Some(pending) = ledger.pending.get(&service) else { continue };
            if Arc::ptr_eq(pending, &entry) {
                ledger.pending.remove(&service);
            }
            self.show(&mut ledger, service, entry);
        }
        self.make_room(&mut ledger);
        self.writes.send_modify(|state| {
            // Less than before when a write was given up: the rest waits for the next one.
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
        // Once per reason: a disk that is full for an hour is one line, not a hundred.
        if state.failure.as_ref() != Some(&error) {
            tracing::warn!(%error, "the disk does not take the catalog, which is served from memory");
        }
        state.failure = Some(error);
        self.metrics.writable.set(0);
    }

    /// Serves an entry from now on.
    pub(super) fn show(&self, ledger: &mut Ledger, service: ServiceName, entry: Arc<Entry>) {
        ledger.floors.remove(&service);
        self.rows.insert(service, entry);
    }

    /// Evicts what is beyond the bounds.
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

    /// Has written what is not on disk yet: validations above all, and everything when the disk has failed. Ends
    /// tombstones. Goes through all services.
    pub(crate) fn flush(self: &Arc<Self>) {
        let (now, wall, all) = (self.clock.now(), SystemTime::now(), self.rows.all());
        // Whoever takes a version waits for the ledger, and not for this.
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
