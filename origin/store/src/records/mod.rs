//! Records: the few small values that change, replaced by compare-and-set.
//!
//! An engine needs conditional writes of single keys and nothing else: no transactions, no expiry, no watches.
//! `contract.rs` is the test suite for engines; [`proof`] is what an origin can check of one in production.

mod bucket;
#[cfg(test)]
mod contract;
mod engine;
mod etcd;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod faulty;
mod key;
mod local;
pub mod proof;
mod record_file;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use self::engine::Engine;
pub use self::engine::SharedEngine;
pub use self::key::RecordKey;
use self::local::LocalEngine;
use super::metrics::StoreMetrics;

/// The largest record; engines such as etcd accept at most 1.5 MiB.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// Identifies one write of one record. Opaque, and never reused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

/// One state of a record.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its bytes.
    pub bytes: Bytes,
    /// Pass it to [`Expect::Version`] to replace this record.
    pub version: Version,
    /// Why the current copy is damaged, if this is the previous one. The next write replaces the damaged copy.
    pub recovered: Option<String>,
}

/// The state that a write replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// No such record exists.
    Absent,
    /// The record has this version.
    Version(Version),
}

/// The result of a write.
#[derive(Debug, Clone)]
pub enum PutOutcome {
    /// The write is durable and has this version.
    Done(Version),
    /// Nothing was written: the record was not in the expected state.
    Conflict,
    /// The write may have been committed, or may still be. It was if [`Records::get`] returns its bytes; it was not
    /// if a later write that expects the same version succeeds.
    Unknown(RecordError),
}

/// Nothing is known of a record, or of the outcome of a write.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RecordError {
    /// No copy of the record can be read. An operator has to decide.
    #[error("record {key} is damaged: {cause}")]
    Damaged {
        /// The key.
        key: RecordKey,
        /// What is wrong with each copy.
        cause: String,
    },
    /// The engine failed or did not answer: the state of the record is unknown.
    #[error("record {key}: {cause}")]
    Unavailable {
        /// The key, or the prefix of a listing.
        key: String,
        /// Why.
        cause: String,
    },
    /// It has more than [`MAX_RECORD_BYTES`]. Nothing was written.
    #[error("record {key} has {bytes} bytes, more than {MAX_RECORD_BYTES}")]
    TooLarge {
        /// The key.
        key: RecordKey,
        /// Its length in bytes.
        bytes: usize,
    },
}

/// A record in a listing, with its version if the engine lists versions.
pub type Listed = (RecordKey, Option<Version>);

/// The records of an origin. Clones share the same engine.
#[derive(Debug, Clone)]
pub struct Records {
    engine: Engine,
    metrics: StoreMetrics,
}

impl Records {
    /// Opens the records in the folder `records` of a data directory. The caller must hold the lock of the data
    /// directory while it uses them; the lock keeps other processes out.
    ///
    /// # Errors
    /// The folder cannot be created or made durable.
    pub fn open_local(data_dir: &Path, metrics: StoreMetrics) -> std::io::Result<Self> {
        Ok(Self { engine: Engine::Local(LocalEngine::open(&data_dir.join("records"))?), metrics })
    }

    /// Opens the records that several origins share. No request is sent yet.
    ///
    /// # Errors
    /// The configuration cannot be used; the message says what to change.
    pub fn open_shared(engine: SharedEngine<'_>, metrics: StoreMetrics) -> Result<Self, String> {
        Ok(Self { engine: Engine::shared(engine)?, metrics })
    }

    /// Whether the records are files of this machine. Otherwise each request has a price, or other nodes wait for it.
    pub fn are_local(&self) -> bool {
        matches!(self.engine, Engine::Local(_))
    }

    /// Records whose writes fail as a test says.
    #[cfg(any(test, feature = "testing"))]
    pub fn over(engine: Arc<faulty::FaultyEngine>, metrics: StoreMetrics) -> Self {
        Self { engine: Engine::Faulty(engine), metrics }
    }

    /// Reads a record. The result is durable.
    ///
    /// # Errors
    /// [`RecordError::Damaged`] or [`RecordError::Unavailable`].
    pub async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        let record = self.engine.get(key).await;
        self.count(
            "get",
            match &record {
                Ok(Some(record)) if record.recovered.is_some() => "recovered",
                Ok(Some(_)) => "ok",
                Ok(None) => "absent",
                Err(RecordError::Damaged { .. }) => "damaged",
                Err(_) => "failed",
            },
        );
        record
    }

    /// Replaces a record if it is in the expected state.
    pub async fn put(&self, key: &RecordKey, bytes: Bytes, expect: Expect) -> PutOutcome {
        let outcome = if bytes.len() > MAX_RECORD_BYTES {
            PutOutcome::Unknown(RecordError::TooLarge { key: key.clone(), bytes: bytes.len() })
        } else {
            self.engine.put(key, bytes, expect).await
        };
        self.count(
            "put",
            match &outcome {
                PutOutcome::Done(_) => "done",
                PutOutcome::Conflict => "conflict",
                PutOutcome::Unknown(_) => "unknown",
            },
        );
        outcome
    }

    /// Deletes a record if it still has this version; otherwise it does nothing. A write that expected none, and is carried
    /// out late, may bring the first state of the record back.
    ///
    /// A bucket compares the version right before the deletion: not all providers have conditional ones. So the caller must
    /// be the record's only writer, and stay it for the longest time of a request, or the record must be one that its writer
    /// writes again.
    ///
    /// # Errors
    /// [`RecordError::Damaged`] or [`RecordError::Unavailable`]. The record may be deleted, or may still be.
    pub async fn delete(&self, key: &RecordKey, version: &Version) -> Result<(), RecordError> {
        let deleted = self.engine.delete(key, version).await;
        self.count("delete", if deleted.is_ok() { "ok" } else { "failed" });
        deleted
    }

    /// The sorted keys with a prefix such as `repositories/`, including those of damaged records.
    ///
    /// # Errors
    /// [`RecordError::Unavailable`].
    pub async fn list(&self, prefix: &str) -> Result<Vec<RecordKey>, RecordError> {
        Ok(self.list_versions(prefix).await?.into_iter().map(|(key, _)| key).collect())
    }

    /// As [`Records::list`], with the versions that the listing has. They are as new as the listing.
    ///
    /// # Errors
    /// [`RecordError::Unavailable`].
    pub async fn list_versions(&self, prefix: &str) -> Result<Vec<Listed>, RecordError> {
        let listed = self.engine.list(prefix).await;
        self.count("list", if listed.is_ok() { "ok" } else { "failed" });
        listed
    }

    fn count(&self, operation: &str, result: &str) {
        self.metrics.record_requests.with_label_values(&[operation, result]).inc();
    }
}
