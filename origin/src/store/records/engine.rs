//! The engines, one of which stores all records of an origin.

use std::sync::Arc;

use bytes::Bytes;

use super::bucket::BucketEngine;
use super::etcd::EtcdEngine;
#[cfg(test)]
use super::faulty::FaultyEngine;
use super::local::LocalEngine;
use super::{Expect, Listed, PutOutcome, Record, RecordError, RecordKey};
use crate::config::{ClusterConfig, EngineName, StoreConfig};

/// A record store. All calls for one key are linearizable, across processes. Clones share the same engine.
#[derive(Debug, Clone)]
pub(super) enum Engine {
    Local(LocalEngine),
    Bucket(BucketEngine),
    Etcd(Arc<EtcdEngine>),
    #[cfg(test)]
    Faulty(Arc<FaultyEngine>),
}

impl Engine {
    /// Opens the engine that several origins share. No request is sent yet.
    ///
    /// # Errors
    /// The configuration cannot be used; the message says what to change.
    pub(super) fn shared(cluster: &ClusterConfig, store: &StoreConfig) -> Result<Self, String> {
        match cluster.engine {
            EngineName::Bucket => BucketEngine::open(store).map(Self::Bucket),
            EngineName::Etcd => {
                // A session must survive a member that does not answer: two are asked in each attempt to renew it.
                let patience = cluster.timing().attempt() / 2;
                Ok(Self::Etcd(Arc::new(EtcdEngine::open(cluster.etcd()?, patience)?)))
            }
        }
    }

    /// See [`Records::get`](super::Records::get).
    pub(super) async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        match self {
            Self::Local(engine) => engine.get(key).await,
            Self::Bucket(engine) => engine.get(key).await,
            Self::Etcd(engine) => engine.get(key).await,
            #[cfg(test)]
            Self::Faulty(engine) => engine.get(key).await,
        }
    }

    /// See [`Records::put`](super::Records::put).
    pub(super) async fn put(&self, key: &RecordKey, bytes: Bytes, expect: Expect) -> PutOutcome {
        match self {
            Self::Local(engine) => engine.put(key, bytes, expect).await,
            Self::Bucket(engine) => engine.put(key, &bytes, expect).await,
            Self::Etcd(engine) => engine.put(key, &bytes, expect).await,
            #[cfg(test)]
            Self::Faulty(engine) => engine.put(key, bytes, expect).await,
        }
    }

    /// See [`Records::list_versions`](super::Records::list_versions).
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Listed>, RecordError> {
        match self {
            Self::Local(engine) => engine.list(prefix).await,
            Self::Bucket(engine) => engine.list(prefix).await,
            Self::Etcd(engine) => engine.list(prefix).await,
            #[cfg(test)]
            Self::Faulty(engine) => engine.list(prefix).await,
        }
    }

    /// Deletes a record of a [`proof`](super::proof). Other records are never deleted: a late write that expects none
    /// would bring an old one back.
    pub(super) async fn delete(&self, key: &RecordKey) -> Result<(), RecordError> {
        match self {
            Self::Local(engine) => engine.delete(key).await,
            Self::Bucket(engine) => engine.delete(key).await,
            Self::Etcd(engine) => engine.delete(key).await,
            #[cfg(test)]
            Self::Faulty(engine) => engine.delete(key).await,
        }
    }
}
