//! The record engine of several origins that share an etcd: one key for each record, replaced by a transaction that compares
//! its `mod_revision`.

mod client;
mod messages;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use std::time::Duration;

use bytes::Bytes;

use self::client::{Client, Retry};
use self::messages::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TARGET_MOD, TxnRequest};
use super::record_file::{decode, encode};
use super::{Expect, Listed, PutOutcome, Record, RecordError, RecordKey, Version};
use crate::etcd_config::EtcdConfig;

/// Records in etcd.
#[derive(Debug)]
pub(crate) struct EtcdEngine {
    client: Client,
    /// What all keys begin with.
    prefix: String,
}

impl EtcdEngine {
    /// Sends nothing yet. A member that has not answered for this long is passed over.
    pub(crate) fn open(config: &EtcdConfig, patience: Duration) -> Result<Self, String> {
        Ok(Self { client: Client::new(config, patience)?, prefix: config.prefix.clone() })
    }

    pub(crate) async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        let request = RangeRequest { key: self.key(key.as_str()), ..RangeRequest::default() };
        let response = self.client.call(&request, Retry::Always).await.map_err(|cause| unavailable(key, cause))?;
        let Some(found) = response.kvs.into_iter().next() else { return Ok(None) };
        let damaged = |cause: &str| RecordError::Damaged { key: key.clone(), cause: cause.to_owned() };
        let (bytes, _) = decode(&found.value).map_err(damaged)?;
        Ok(Some(Record { bytes, version: version(found.mod_revision), recovered: None }))
    }

    pub(crate) async fn put(&self, key: &RecordKey, bytes: &[u8], expect: Expect) -> PutOutcome {
        let mod_revision = match expect {
            Expect::Absent => Some(0),
            Expect::Version(Version(version)) => version.parse().ok(),
        };
        // A version of another engine.
        let Some(mod_revision) = mod_revision else { return PutOutcome::Conflict };
        let key_bytes = self.key(key.as_str());
        let put = PutRequest { key: key_bytes.clone(), value: encode(bytes).0.into() };
        let request = if_unchanged(key_bytes, mod_revision, RequestOp { put: Some(put), ..RequestOp::default() });
        match self.client.call(&request, Retry::IfUnsent).await {
            Ok(response) if !response.succeeded => PutOutcome::Conflict,
            Ok(response) => match response.header {
                Some(header) => PutOutcome::Done(version(header.revision)),
                None => PutOutcome::Unknown(unavailable(key, "the answer has no revision".to_owned())),
            },
            Err(cause) => PutOutcome::Unknown(unavailable(key, cause)),
        }
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<Listed>, RecordError> {
        let first = self.key(prefix);
        // The first key that does not begin with the prefix. All prefixes are ASCII.
        let mut range_end = first.to_vec();
        if let Some(last) = range_end.last_mut() {
            *last += 1;
        }
        let request = RangeRequest { key: first, range_end: range_end.into(), keys_only: true };
        let response = self.client.call(&request, Retry::Always).await.map_err(|cause| unavailable(&prefix, cause))?;
        let records = response.kvs.iter().filter_map(|found| {
            let key = std::str::from_utf8(&found.key).ok()?;
            Some((key.strip_prefix(&self.prefix)?.parse().ok()?, Some(version(found.mod_revision))))
        });
        let mut records: Vec<(RecordKey, _)> = records.collect();
        records.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(records)
    }

    pub(crate) async fn delete(&self, key: &RecordKey, Version(version): &Version) -> Result<(), RecordError> {
        // A version of another engine.
        let Ok(mod_revision) = version.parse() else { return Ok(()) };
        let key_bytes = self.key(key.as_str());
        let delete = DeleteRangeRequest { key: key_bytes.clone() };
        let request = if_unchanged(key_bytes, mod_revision, RequestOp { delete: Some(delete), ..RequestOp::default() });
        let deleted = self.client.call(&request, Retry::Always).await;
        deleted.map(drop).map_err(|cause| unavailable(key, cause))
    }

    fn key(&self, name: &str) -> Bytes {
        format!("{}{name}", self.prefix).into()
    }
}

fn if_unchanged(key: Bytes, mod_revision: i64, operation: RequestOp) -> TxnRequest {
    let compare = Compare { target: TARGET_MOD, key, mod_revision: Some(mod_revision) };
    TxnRequest { compare: vec![compare], success: vec![operation] }
}

fn version(mod_revision: i64) -> Version {
    Version(mod_revision.to_string().into())
}

fn unavailable(key: &impl ToString, cause: String) -> RecordError {
    RecordError::Unavailable { key: key.to_string(), cause }
}
