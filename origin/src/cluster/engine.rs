//! The core's requests to the record store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use weir_ownership::{Answer, Claim, NodeRecord};
use weir_protocol::name::{NodeName, RepositoryName};
use weir_publish::{Time, claim_of, reclaimed};
use weir_store::{Expect, PutOutcome, RecordError, RecordKey, Records, Version};

use super::Secrets;

const NODES: &str = "nodes/";
const REPOSITORIES: &str = "repositories/";

/// Records of nodes that are read at a time.
const CONCURRENT_READS: usize = 16;

/// The record of a node as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredNode {
    #[serde(flatten)]
    pub(super) record: NodeRecord,
    /// When the node wrote it, by its own clock: for people alone. Nothing is decided by it. A node of an earlier version
    /// has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) written_at: Option<Time>,
    /// The secret of this run: see [`Secrets`]. A node of an earlier version has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
}

/// Reads and writes for the core. Clones share what they have read.
#[derive(Clone)]
pub(super) struct Engine {
    records: Records,
    secrets: Secrets,
    /// The records of nodes that were read last, with the versions of listings: what has not changed is not read again.
    seen: Arc<Mutex<BTreeMap<RecordKey, (Version, StoredNode)>>>,
}

impl Engine {
    pub(super) fn new(records: Records, secrets: Secrets) -> Self {
        Self { records, secrets, seen: Arc::default() }
    }

    pub(super) async fn read_node(self, node: NodeName) -> Answer<Version> {
        let key = RecordKey::node(&node);
        match self.records.get(&key).await {
            Ok(None) => Answer::Node(None),
            Ok(Some(record)) => match serde_json::from_slice(&record.bytes) {
                Ok(node) => Answer::Node(Some((node, record.version))),
                Err(error) => unknown(&key, &error),
            },
            Err(error) => unknown(&key, &error),
        }
    }

    pub(super) async fn write_node(self, expect: Option<Version>, record: NodeRecord) -> Answer<Version> {
        let key = RecordKey::node(&record.node);
        let (written_at, secret) = (Some(SystemTime::now().into()), Some(self.secrets.own().to_owned()));
        let stored = StoredNode { record, written_at, secret };
        let bytes = serde_json::to_vec(&stored).expect("a record is plain data");
        self.put(&key, bytes.into(), expect).await
    }

    pub(super) async fn read_nodes(self) -> Answer<Version> {
        let listed = match self.records.list_versions(NODES).await {
            Ok(listed) => listed,
            Err(error) => return unknown(&NODES, &error),
        };
        let before = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        let reads = listed.into_iter().map(|(key, version)| {
            let known = before.get(&key).filter(|(known, _)| Some(known) == version.as_ref()).cloned();
            let records = &self.records;
            async move {
                match known {
                    Some(known) => Ok(Some((key, known))),
                    None => read_node_of_listing(records, key).await,
                }
            }
        });
        let read: Result<Vec<_>, RecordError> =
            stream::iter(reads).buffer_unordered(CONCURRENT_READS).try_collect().await;
        match read {
            Ok(read) => {
                let seen: BTreeMap<_, _> = read.into_iter().flatten().collect();
                let secret = |stored: &StoredNode| Some((stored.record.node.clone(), stored.secret.clone()?));
                self.secrets.learn(seen.values().filter_map(|(_, stored)| secret(stored)).collect());
                let records = seen.values().map(|(_, stored)| stored.record.clone()).collect();
                *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
                Answer::Nodes(records)
            }
            Err(error) => unknown(&NODES, &error),
        }
    }

    /// Deletes the record of a node if it is still the one that was read last.
    pub(super) async fn delete_node(self, record: NodeRecord) {
        let key = RecordKey::node(&record.node);
        let read = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let Some((version, _)) = read.filter(|(_, read)| read.record == record) else { return };
        match self.records.delete(&key, &version).await {
            Ok(()) => tracing::info!(node = %record.node, "deleted the record of a member that ended long ago"),
            Err(error) => tracing::warn!(%error, "the record of a member that ended long ago cannot be deleted yet"),
        }
    }

    pub(super) async fn list_repositories(self) -> Answer<Version> {
        match self.records.list_versions(REPOSITORIES).await {
            Ok(listed) => {
                let named = listed.into_iter().filter_map(|(key, version)| Some((key.name().parse().ok()?, version)));
                Answer::Repositories(named.collect())
            }
            Err(error) => unknown(&REPOSITORIES, &error),
        }
    }

    pub(super) async fn read_repository(self, repository: RepositoryName) -> Answer<Version> {
        let key = RecordKey::repository(&repository);
        match self.records.get(&key).await {
            Ok(None) => Answer::Repository(None),
            Ok(Some(record)) => match claim_of(&repository, &record.bytes) {
                Ok(claim) => Answer::Repository(Some((claim, record.version))),
                Err(error) => unknown(&key, &error),
            },
            Err(error) => unknown(&key, &error),
        }
    }

    pub(super) async fn write_repository(
        self,
        repository: RepositoryName,
        expect: Option<Version>,
        claim: Claim,
    ) -> Answer<Version> {
        let key = RecordKey::repository(&repository);
        let before = match &expect {
            // The write itself finds out whether there is none: a cold start claims everything at once.
            None => None,
            Some(expected) => match self.records.get(&key).await {
                Ok(Some(record)) if record.version == *expected => Some(record.bytes),
                Ok(_) => return Answer::Conflict,
                Err(error) => return unknown(&key, &error),
            },
        };
        match reclaimed(&repository, before.as_deref(), &claim) {
            Ok(bytes) => self.put(&key, bytes, expect).await,
            Err(error) => unknown(&key, &error),
        }
    }

    async fn put(&self, key: &RecordKey, bytes: Bytes, expect: Option<Version>) -> Answer<Version> {
        match self.records.put(key, bytes, expect.map_or(Expect::Absent, Expect::Version)).await {
            PutOutcome::Done(version) => Answer::Written(version),
            PutOutcome::Conflict => Answer::Conflict,
            PutOutcome::Unknown(error) => unknown(key, &error),
        }
    }
}

/// `None`: it was deleted, or cannot be read in this version, and counts as missing.
async fn read_node_of_listing(
    records: &Records,
    key: RecordKey,
) -> Result<Option<(RecordKey, (Version, StoredNode))>, RecordError> {
    let record = match records.get(&key).await {
        Err(error @ RecordError::Damaged { .. }) => {
            tracing::warn!(%error, "a member's record is damaged: the member is treated as if it had none");
            None
        }
        read => read?,
    };
    let Some(record) = record else { return Ok(None) };
    match serde_json::from_slice(&record.bytes) {
        Ok(node) => Ok(Some((key, (record.version, node)))),
        Err(error) => {
            tracing::warn!(%key, %error, "a member's record cannot be read: the member is treated as if it had none");
            Ok(None)
        }
    }
}

fn unknown(name: &impl ToString, error: &impl ToString) -> Answer<Version> {
    tracing::debug!(record = name.to_string(), error = error.to_string(), "a request to the record store failed");
    Answer::Unknown
}
