//! Records: the few small values that change, replaced by compare-and-set.
//!
//! An engine needs conditional writes of single keys and nothing else: no transactions, no expiry, no watches.
//! `contract.rs` is the test suite for engines; [`proof`] is what an origin can check of one in production.

mod bucket;
#[cfg(test)]
mod contract;
mod engine;
mod etcd;
#[cfg(test)]
pub(super) mod faulty;
mod key;
mod local;
pub mod proof;
mod record_file;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;

use self::engine::Engine;
pub(crate) use self::key::RecordKey;
use self::local::LocalEngine;
use super::metrics::StoreMetrics;
use crate::config::{ClusterConfig, Config, StoreConfig};

/// The largest record; engines such as etcd accept at most 1.5 MiB.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 20;

/// Identifies one write of one record. Opaque, and never reused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Version(Arc<str>);

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) bytes: Bytes,
    /// Pass it to [`Expect::Version`] to replace this record.
    pub(crate) version: Version,
    /// Why the current copy is damaged, if this is the previous one. The next write replaces the damaged copy.
    pub(crate) recovered: Option<String>,
}

/// The state that a write replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expect {
    /// No such record exists.
    Absent,
    /// The record has this version.
    Version(Version),
}

/// The result of a write.
#[derive(Debug, Clone)]
pub(crate) enum PutOutcome {
    /// The write is durable and has this version.
    Done(Version),
    /// Nothing was written: the record was not in the expected state.
    Conflict,
    /// The write may have been committed, or may still be. It was if [`Records::get`] returns its bytes; it was not
    /// if a later write that expects the same version succeeds.
    Unknown(RecordError),
}

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum RecordError {
    /// No copy of the record can be read. An operator has to decide.
    #[error("record {key} is damaged: {cause}")]
    Damaged {
        key: RecordKey,
        /// What is wrong with each copy.
        cause: String,
    },
    /// The engine failed or did not answer: the state of the record is unknown.
    #[error("record {key}: {cause}")]
    Unavailable {
        /// The key, or the prefix of a listing.
        key: String,
        cause: String,
    },
    #[error("record {key} has {bytes} bytes, more than {MAX_RECORD_BYTES}")]
    TooLarge {
        key: RecordKey,
        /// Its length in bytes.
        bytes: usize,
    },
}

/// A record in a listing, with its version if the engine lists versions.
pub(crate) type Listed = (RecordKey, Option<Version>);

/// The records of an origin. Clones share the same engine.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    engine: Engine,
    metrics: StoreMetrics,
}

impl Records {
    /// Opens the records of an origin: those of its data directory, whose lock it must hold, or those that the members of
    /// its cluster share.
    ///
    /// # Errors
    /// The folder or the configuration cannot be used.
    pub(crate) fn open(config: &Config, data_dir: &Path, metrics: StoreMetrics) -> anyhow::Result<Self> {
        match &config.cluster {
            Some(cluster) => Self::open_shared(cluster, &config.store, metrics).map_err(anyhow::Error::msg),
            None => Self::open_local(data_dir, metrics)
                .with_context(|| format!("the folder of records in {} cannot be used", data_dir.display())),
        }
    }

    /// Opens the records in the folder `records` of a data directory. The caller must hold the lock of the data
    /// directory while it uses them; the lock keeps other processes out.
    ///
    /// # Errors
    /// The folder cannot be created or made durable.
    pub(crate) fn open_local(data_dir: &Path, metrics: StoreMetrics) -> std::io::Result<Self> {
        Ok(Self { engine: Engine::Local(LocalEngine::open(&data_dir.join("records"))?), metrics })
    }

    /// Opens the records that several origins share. No request is sent yet.
    ///
    /// # Errors
    /// The configuration cannot be used; the message says what to change.
    pub(crate) fn open_shared(
        cluster: &ClusterConfig,
        store: &StoreConfig,
        metrics: StoreMetrics,
    ) -> Result<Self, String> {
        Ok(Self { engine: Engine::shared(cluster, store)?, metrics })
    }

    /// Whether the records are files of this machine. Otherwise each request has a price, or other nodes wait for it.
    pub(crate) fn are_local(&self) -> bool {
        matches!(self.engine, Engine::Local(_))
    }

    /// Records whose writes fail as a test says.
    #[cfg(test)]
    pub(crate) fn over(engine: Arc<faulty::FaultyEngine>, metrics: StoreMetrics) -> Self {
        Self { engine: Engine::Faulty(engine), metrics }
    }

    /// Reads a record. The result is durable.
    ///
    /// # Errors
    /// [`RecordError::Damaged`] or [`RecordError::Unavailable`].
    pub(crate) async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        let record = self.engine.get(key).await;
        self.metrics.record_read(&record);
        record
    }

    /// Replaces a record if it is in the expected state.
    pub(crate) async fn put(&self, key: &RecordKey, bytes: Bytes, expect: Expect) -> PutOutcome {
        let outcome = if bytes.len() > MAX_RECORD_BYTES {
            PutOutcome::Unknown(RecordError::TooLarge { key: key.clone(), bytes: bytes.len() })
        } else {
            self.engine.put(key, bytes, expect).await
        };
        self.metrics.record_written(&outcome);
        outcome
    }

    /// The sorted keys with a prefix such as `repositories/`, including those of damaged records.
    ///
    /// # Errors
    /// [`RecordError::Unavailable`].
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<RecordKey>, RecordError> {
        Ok(self.list_versions(prefix).await?.into_iter().map(|(key, _)| key).collect())
    }

    /// As [`Records::list`], with the versions that the listing has. They are as new as the listing.
    ///
    /// # Errors
    /// [`RecordError::Unavailable`].
    pub(crate) async fn list_versions(&self, prefix: &str) -> Result<Vec<Listed>, RecordError> {
        let listed = self.engine.list(prefix).await;
        self.metrics.records_listed(&listed);
        listed
    }
}
