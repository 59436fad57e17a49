//! The engines, one of which stores all records of an origin.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::bucket::BucketEngine;
use super::etcd::EtcdEngine;
#[cfg(any(test, feature = "testing"))]
use super::faulty::FaultyEngine;
use super::local::LocalEngine;
use super::{Expect, Listed, PutOutcome, Record, RecordError, RecordKey, Version};
use crate::config::StoreConfig;
use crate::etcd_config::EtcdConfig;

/// An engine that several origins share.
#[derive(Debug, Clone, Copy)]
pub enum SharedEngine<'a> {
    /// The bucket of this store.
    Bucket(&'a StoreConfig),
    /// An etcd. A member has this long to answer.
    Etcd(&'a EtcdConfig, Duration),
}

/// A record store. All calls for one key are linearizable, across processes. Clones share the same engine.
#[derive(Debug, Clone)]
pub(crate) enum Engine {
    Local(LocalEngine),
    Bucket(BucketEngine),
    Etcd(Arc<EtcdEngine>),
    #[cfg(any(test, feature = "testing"))]
    Faulty(Arc<FaultyEngine>),
}

impl Engine {
    /// Opens the engine that several origins share. No request is sent yet.
    ///
    /// # Errors
    /// The configuration cannot be used; the message says what to change.
    pub(crate) fn shared(engine: SharedEngine<'_>) -> Result<Self, String> {
        match engine {
            SharedEngine::Bucket(store) => BucketEngine::open(store).map(Self::Bucket),
            SharedEngine::Etcd(etcd, patience) => Ok(Self::Etcd(Arc::new(EtcdEngine::open(etcd, patience)?))),
        }
    }

    /// See [`Records::get`](super::Records::get).
    pub(crate) async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        match self {
            Self::Local(engine) => engine.get(key).await,
            Self::Bucket(engine) => engine.get(key).await,
            Self::Etcd(engine) => engine.get(key).await,
            #[cfg(any(test, feature = "testing"))]
            Self::Faulty(engine) => engine.get(key).await,
        }
    }

    /// See [`Records::put`](super::Records::put).
    pub(crate) async fn put(&self, key: &RecordKey, bytes: Bytes, expect: Expect) -> PutOutcome {
        match self {
            Self::Local(engine) => engine.put(key, bytes, expect).await,
            Self::Bucket(engine) => engine.put(key, &bytes, expect).await,
            Self::Etcd(engine) => engine.put(key, &bytes, expect).await,
            #[cfg(any(test, feature = "testing"))]
            Self::Faulty(engine) => engine.put(key, bytes, expect).await,
        }
    }

    /// See [`Records::list_versions`](super::Records::list_versions).
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<Listed>, RecordError> {
        match self {
            Self::Local(engine) => engine.list(prefix).await,
            Self::Bucket(engine) => engine.list(prefix).await,
            Self::Etcd(engine) => engine.list(prefix).await,
            #[cfg(any(test, feature = "testing"))]
            Self::Faulty(engine) => engine.list(prefix).await,
        }
    }

    /// See [`Records::delete`](super::Records::delete).
    pub(crate) async fn delete(&self, key: &RecordKey, version: &Version) -> Result<(), RecordError> {
        match self {
            Self::Local(engine) => engine.delete(key, version).await,
            Self::Bucket(engine) => engine.delete(key, version).await,
            Self::Etcd(engine) => engine.delete(key, version).await,
            #[cfg(any(test, feature = "testing"))]
            Self::Faulty(engine) => engine.delete(key, version).await,
        }
    }
}
