//! The record `cluster/store`: the identity of the store and when it was first used. A recent time on an old
//! installation means that its data was lost.

use std::time::SystemTime;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_protocol::name::ClusterId;
use weir_store::{Expect, Objects, PutOutcome, RecordError, RecordKey, Records};

use super::row::{from_unix, unix_milliseconds};
use crate::error::PublishError;

const KEY: &str = "cluster/store";

/// What the store says of itself.
#[derive(Debug, Clone)]
pub struct StoreIdentity {
    /// `None`: the record is damaged.
    id: Option<String>,
    /// When the store was first used.
    pub created_at: SystemTime,
}

#[derive(Default, Serialize, Deserialize)]
struct StoreRecord {
    id: String,
    /// Unix milliseconds.
    created_at: u64,
}

impl StoreIdentity {
    /// Reads the record, or creates it if there is none. `is_empty`: the store has no other records.
    pub(crate) async fn read_or_create(
        records: &Records,
        now: SystemTime,
        is_empty: bool,
    ) -> Result<Self, PublishError> {
        let key: RecordKey = KEY.parse().expect("it is a key");
        if let Some(stored) = Self::read(records, &key).await? {
            return Ok(stored);
        }
        let stored = StoreRecord { id: format!("{:032x}", fastrand::u128(..)), created_at: unix_milliseconds(now) };
        let bytes = Bytes::from(serde_json::to_vec(&stored).expect("it is plain data"));
        match records.put(&key, bytes, Expect::Absent).await {
            PutOutcome::Done(_) => {
                if is_empty {
                    tracing::info!(id = stored.id, "the store is new");
                }
                Ok(Self { id: Some(stored.id), created_at: from_unix(stored.created_at) })
            }
            // Another member of a new cluster came first.
            PutOutcome::Conflict => Self::read(records, &key)
                .await?
                .ok_or_else(|| PublishError::Record(format!("{KEY}: another process writes it"))),
            PutOutcome::Unknown(error) => Err(error.into()),
        }
    }

    async fn read(records: &Records, key: &RecordKey) -> Result<Option<Self>, PublishError> {
        let stored = match records.get(key).await {
            Ok(None) => return Ok(None),
            Ok(Some(record)) => serde_json::from_slice(&record.bytes).unwrap_or_default(),
            Err(error @ RecordError::Damaged { .. }) => {
                tracing::error!(%error, "the record of the store's identity is damaged: the time of its first use is lost");
                StoreRecord::default()
            }
            Err(error) => return Err(error.into()),
        };
        let StoreRecord { id, created_at } = stored;
        Ok(Some(Self { id: Some(id).filter(|id| !id.is_empty()), created_at: from_unix(created_at) }))
    }

    /// The cluster of the origins that share this store. `None`: the record of its identity is damaged.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.id.as_ref()?.parse().ok()
    }

    /// Checks that objects and records belong to the same store. Otherwise garbage collection would delete the
    /// objects of another store.
    pub(crate) async fn check(&self, objects: &Objects) -> Result<(), PublishError> {
        let Some(id) = &self.id else { return Ok(()) };
        let theirs = objects.claim(id).await?;
        if theirs == *id { Ok(()) } else { Err(PublishError::ForeignObjects { ours: id.clone(), theirs }) }
    }
}
