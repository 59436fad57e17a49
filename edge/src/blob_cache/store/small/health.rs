//! Whether what foyer writes reaches the disk. When it does not, foyer logs that and goes on: its files run out one by
//! one, and in the end it stands still. So the first loss ends the use of its disk.
//!
//! It tells of a loss by its metrics alone. It writes one batch at a time, and counts what it found in the way of a batch
//! once that is written, also when that was nothing: a batch that ends without this was lost.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;

use crate::metrics::{CacheMetrics, WriteDropped};

/// The health of foyer's disk.
#[derive(Debug)]
pub(super) struct Health {
    batch: Mutex<Batch>,
    is_broken: AtomicBool,
    directory: PathBuf,
    metrics: CacheMetrics,
}

/// The batch that is being written.
#[derive(Debug, Default, Clone, Copy)]
struct Batch {
    has_blobs: bool,
    is_written: bool,
}

impl Health {
    pub(super) fn new(directory: PathBuf, metrics: CacheMetrics) -> Self {
        Self { batch: Mutex::default(), is_broken: AtomicBool::new(false), directory, metrics }
    }

    /// A write was lost: what is on disk is used no more.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// A batch begins, whose blobs fill so much of its buffer.
    pub(super) fn begins(&self, filled: f64) {
        *self.batch() = Batch { has_blobs: filled > 0.0, is_written: false };
    }

    /// Blobs of the batch are written.
    pub(super) fn written(&self) {
        self.batch().is_written = true;
    }

    /// The batch has ended.
    pub(super) fn ended(&self) {
        let batch = std::mem::take(&mut *self.batch());
        if batch.has_blobs && !batch.is_written {
            self.lost();
        }
    }

    fn lost(&self) {
        self.metrics.write_dropped(WriteDropped::SmallLost);
        if self.is_broken.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::error!(
            directory = %self.directory.display(),
            "the disk does not take the small blobs: until the next start they are kept in files like the others"
        );
        // What is forgotten from now on is not forgotten there: the next process begins anew.
        let directory = self.directory.clone();
        let remove = move || {
            if let Err(error) = std::fs::remove_dir_all(&directory) {
                tracing::warn!(%error, "the directory of the small blobs cannot be removed");
            }
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(remove);
        }
    }

    fn batch(&self) -> std::sync::MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_blobs_that_ends_unwritten_was_lost() {
        let metrics = crate::metrics::Metrics::register(&prometheus::Registry::new()).unwrap().cache;
        let health = Health::new("/nowhere".into(), metrics);
        // Written; and one that only forgets blobs writes none.
        health.begins(0.4);
        health.written();
        health.ended();
        health.begins(0.0);
        health.ended();
        assert!(!health.is_broken());
        health.begins(0.1);
        health.ended();
        assert!(health.is_broken());
        health.begins(0.1);
        health.written();
        health.ended();
        assert!(health.is_broken(), "until the next start");
    }
}
