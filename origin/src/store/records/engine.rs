//! The engines, one of which stores all records of an origin.

#[cfg(test)]
use std::sync::Arc;

use bytes::Bytes;

#[cfg(test)]
use super::faulty::FaultyEngine;
use super::local::LocalEngine;
use super::{Expect, PutOutcome, Record, RecordError, RecordKey};

/// An engine of records. All calls for one key are linearizable, across processes. Clones share the same engine.
#[derive(Debug, Clone)]
pub(super) enum Engine {
    Local(LocalEngine),
    #[cfg(test)]
    Faulty(Arc<FaultyEngine>),
}

impl Engine {
    /// See [`Records::get`](super::Records::get).
    pub(super) async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        match self {
            Self::Local(engine) => engine.get(key).await,
            #[cfg(test)]
            Self::Faulty(engine) => engine.get(key).await,
        }
    }

    /// See [`Records::put`](super::Records::put).
    pub(super) async fn put(&self, key: &RecordKey, bytes: Bytes, expect: Expect) -> PutOutcome {
        match self {
            Self::Local(engine) => engine.put(key, bytes, expect).await,
            #[cfg(test)]
            Self::Faulty(engine) => engine.put(key, bytes, expect).await,
        }
    }

    /// See [`Records::list`](super::Records::list).
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<RecordKey>, RecordError> {
        match self {
            Self::Local(engine) => engine.list(prefix).await,
            #[cfg(test)]
            Self::Faulty(engine) => engine.list(prefix).await,
        }
    }
}
