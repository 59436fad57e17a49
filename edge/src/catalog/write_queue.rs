//! What is to be written of the catalog, and how far that is.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use weir_cache::clock::Moment;
use weir_protocol::name::ServiceName;

use super::entries::GenerationFloors;
use super::entry::Entry;
use super::record::Record;
use super::unannounced::Unannounced;

/// How long a write may take before it counts as failed.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of queued records. Beyond it they are dropped, and the file is rewritten instead.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// The write-behind queue, and the floors of evicted services.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    pub(super) floors: GenerationFloors,
    /// Entries that replace others once they are on disk.
    pub(super) pending: HashMap<ServiceName, Arc<Entry>>,
    pub(super) unannounced: Unannounced,
    /// The next write rewrites the file.
    pub(super) rewrite: bool,
    pub(super) records: Vec<Record>,
    pub(super) record_bytes: usize,
    /// The number of changes so far.
    pub(super) queued: u64,
    /// The last change in a batch.
    pub(super) batched: u64,
    pub(super) is_writing: bool,
    /// The start of the write in progress.
    pub(super) write_started: Option<Moment>,
    pub(super) retry_at: Option<Moment>,
    /// The heartbeat of each origin that was written last.
    pub(super) written_heartbeats: HashMap<usize, Moment>,
    /// The origins that were last written as complete.
    pub(super) written_complete: BTreeSet<String>,
}

/// The progress of the writer.
#[derive(Debug, Default)]
pub(super) struct WriteState {
    /// The last change that was written, or whose write failed.
    pub(super) written: u64,
    /// The error of the last write.
    pub(super) failure: Option<String>,
}

/// One write.
pub(super) struct WriteBatch {
    pub(super) records: Vec<Record>,
    pub(super) rewrite: bool,
    pub(super) pending: HashMap<ServiceName, Arc<Entry>>,
    pub(super) queued: u64,
    /// The disk failed recently, and is not tried.
    pub(super) is_backing_off: bool,
}

impl WriteQueue {
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
    pub(super) fn is_hanging(&self, now: Moment) -> bool {
        self.write_started.is_some_and(|begun| now.since(begun) >= WRITE_TIMEOUT)
    }

    #[cfg(test)]
    pub(super) fn retry_now(&mut self) {
        self.retry_at = None;
    }

    /// What is written next. `None`: nothing is left.
    pub(super) fn next_batch(&mut self, now: Moment) -> Option<WriteBatch> {
        if !self.rewrite && self.records.is_empty() && self.batched == self.queued {
            return None;
        }
        (self.batched, self.record_bytes) = (self.queued, 0);
        let is_backing_off = self.retry_at.is_some_and(|at| now < at);
        self.write_started = (!is_backing_off).then_some(now);
        Some(WriteBatch {
            records: std::mem::take(&mut self.records),
            rewrite: std::mem::take(&mut self.rewrite),
            pending: self.pending.clone(),
            queued: self.queued,
            is_backing_off,
        })
    }
}
