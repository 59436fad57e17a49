//! Records: the few small things that change, replaced by compare-and-set.
//!
//! The contract of an engine is conditional writes of single keys and nothing else: no transactions, no expiry, no watch.
//! `contract.rs` is the suite that each engine must pass.

#[cfg(test)]
mod contract;
#[cfg(test)]
pub(super) mod faulty;
mod key;
mod local;
mod record_file;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;

pub(crate) use self::key::RecordKey;
use self::local::LocalEngine;
use super::metrics::StoreMetrics;

/// The most bytes of a record: engines such as etcd take 1.5 MiB at the most.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 20;

/// Which write of a record this is. Opaque; equal only for the same write of the same record, and never used again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Version(Arc<str>);

/// A record as it is stored.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) bytes: Bytes,
    /// What [`Expect::Version`] takes to replace it.
    pub(crate) version: Version,
    /// The current copy is damaged, for this reason, and this is the one before. The next write replaces the damaged one.
    pub(crate) recovered: Option<String>,
}

/// What a write expects to replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expect {
    /// There is no such record.
    Absent,
    /// The record is this version.
    Version(Version),
}

/// What became of a write.
#[derive(Debug, Clone)]
pub(crate) enum PutOutcome {
    /// It is durable, as this version.
    Done(Version),
    /// Nothing was written: the record is not what was expected.
    Conflict,
    /// It may have been committed, or be committed yet. It was, when [`Records::get`] returns its bytes, and it was not,
    /// when a later write that expects the same version is done.
    Unknown(RecordError),
}

/// Why records cannot be read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum RecordError {
    /// Neither the current copy nor the one before can be used. An operator has to decide.
    #[error("record {key} is damaged, and so is its previous version: {cause}")]
    Damaged {
        /// Which record.
        key: RecordKey,
        /// What is wrong with each copy.
        cause: String,
    },
    /// The engine did not answer, or with an error: nothing is known about the record.
    #[error("record {key}: {cause}")]
    Unavailable {
        /// Which record, or prefix.
        key: String,
        /// The engine's error.
        cause: String,
    },
    /// Longer than any engine takes.
    #[error("record {key} has {bytes} bytes, more than {MAX_RECORD_BYTES}")]
    TooLarge {
        /// Which record.
        key: RecordKey,
        /// How long it is.
        bytes: usize,
    },
}

/// An engine of records. Each call is linearisable with all others of the same key, whichever process makes them.
pub(crate) trait RecordEngine: fmt::Debug + Send + Sync + 'static {
    /// As [`Records::get`].
    fn get(&self, key: RecordKey) -> BoxFuture<'static, Result<Option<Record>, RecordError>>;
    /// As [`Records::put`].
    fn put(&self, key: RecordKey, bytes: Bytes, expect: Expect) -> BoxFuture<'static, PutOutcome>;
    /// As [`Records::list`].
    fn list(&self, prefix: String) -> BoxFuture<'static, Result<Vec<RecordKey>, RecordError>>;
}

/// The records of an origin. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    engine: Arc<dyn RecordEngine>,
    metrics: StoreMetrics,
}

impl Records {
    /// The records in files of the folder `records` below a data directory, whose lock the caller holds as long as the
    /// records are used: it is what keeps other processes out.
    ///
    /// # Errors
    /// The folder cannot be created, or made durable.
    pub(crate) fn open_local(data_dir: &Path, metrics: StoreMetrics) -> std::io::Result<Self> {
        Ok(Self::over(Arc::new(LocalEngine::open(&data_dir.join("records"))?), metrics))
    }

    /// The records of any engine.
    pub(crate) fn over(engine: Arc<dyn RecordEngine>, metrics: StoreMetrics) -> Self {
        Self { engine, metrics }
    }

    /// Reads a record. What it returns is durable.
    ///
    /// # Errors
    /// [`RecordError::Damaged`] or [`RecordError::Unavailable`].
    pub(crate) async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        let record = self.engine.get(key.clone()).await;
        self.metrics.record_read(&record);
        record
    }

    /// Replaces a record if it is what `expect` says.
    pub(crate) async fn put(&self, key: &RecordKey, bytes: Bytes, expect: Expect) -> PutOutcome {
        let outcome = if bytes.len() > MAX_RECORD_BYTES {
            PutOutcome::Unknown(RecordError::TooLarge { key: key.clone(), bytes: bytes.len() })
        } else {
            self.engine.put(key.clone(), bytes, expect).await
        };
        self.metrics.record_written(&outcome);
        outcome
    }

    /// The keys that start with a prefix such as `repositories/`, in order; records that are damaged too.
    ///
    /// # Errors
    /// [`RecordError::Unavailable`].
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<RecordKey>, RecordError> {
        let keys = self.engine.list(prefix.to_owned()).await;
        self.metrics.records_listed(&keys);
        keys
    }
}
