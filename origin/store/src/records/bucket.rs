//! The record engine of several origins that share a bucket: one object for each record, replaced by conditional writes.
//!
//! Names of repositories begin with a letter or a digit, so the folder `_records` is beside the objects of all
//! repositories. A bucket stores no previous copies: it has checksums and replicas of its own, and a copy would cost two
//! more requests for each write. A damaged record is an error that an operator settles.

#[cfg(all(test, feature = "s3", feature = "azure"))]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use tokio::time::timeout;
use weir_model::ServerClocks;

use super::record_file::{decode, encode};
use super::{Expect, Listed, MAX_RECORD_BYTES, PutOutcome, Record, RecordError, RecordKey, Version};
use crate::bucket;
use crate::config::{NEEDS_BUCKET, StoreConfig, StoreLocation};
use crate::with_causes::with_causes;

/// The folder of all records.
const FOLDER: &str = "_records";
/// The longest time of a request. A late answer is worth little: a session ends after a few of them.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time of a listing, which takes one request for 1,000 records.
const LISTING_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest stored form: the first line and a record.
const MAX_FILE_BYTES: u64 = MAX_RECORD_BYTES as u64 + 256;

/// Records in a bucket. Clones share the same client, which sends each request once: the answer to a second attempt of
/// a write says nothing about the first.
#[derive(Debug, Clone)]
pub(crate) struct BucketEngine {
    bucket: Arc<dyn ObjectStore>,
    /// Writes expect a generation, as Google's do, and not an ETag.
    by_generation: bool,
}

impl BucketEngine {
    /// Opens the bucket of the objects. No request is sent yet.
    pub(crate) fn open(config: &StoreConfig) -> Result<Self, String> {
        match config.location()? {
            StoreLocation::Bucket(url) => {
                let bucket = bucket::open(config, &url, Some(REQUEST_TIMEOUT), &ServerClocks::default())?;
                Ok(Self { bucket, by_generation: url.scheme() == "gs" })
            }
            _ => Err(NEEDS_BUCKET.to_owned()),
        }
    }

    pub(crate) async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        let read = async {
            let found = self.bucket.get_opts(&path(key), GetOptions::default()).await?;
            let (meta, fits) = (found.meta.clone(), found.meta.size <= MAX_FILE_BYTES);
            Ok((meta, if fits { Some(found.bytes().await?) } else { None }))
        };
        let (meta, file) = match within(REQUEST_TIMEOUT, read).await {
            Ok(found) => found,
            Err(error @ Error::NotFound { .. }) if bucket::exists(&error) => return Ok(None),
            Err(error) => return Err(unavailable(key, &error)),
        };
        let damaged = |cause: &str| RecordError::Damaged { key: key.clone(), cause: cause.to_owned() };
        let file = file.ok_or_else(|| damaged("it is too large"))?;
        let (bytes, _) = decode(&file).map_err(damaged)?;
        let version = self.version(key, meta.e_tag, meta.version)?;
        Ok(Some(Record { bytes, version, recovered: None }))
    }

    pub(crate) async fn put(&self, key: &RecordKey, bytes: &[u8], expect: Expect) -> PutOutcome {
        let mode = match expect {
            Expect::Absent => PutMode::Create,
            Expect::Version(Version(version)) => {
                let version = Some(version.to_string());
                PutMode::Update(UpdateVersion { e_tag: version.clone(), version })
            }
        };
        let (path, payload) = (path(key), encode(bytes).0.into());
        match within(REQUEST_TIMEOUT, self.bucket.put_opts(&path, payload, mode.into())).await {
            Ok(done) => self.version(key, done.e_tag, done.version).map_or_else(PutOutcome::Unknown, PutOutcome::Done),
            // Status 409 or 412: nothing was written.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => PutOutcome::Conflict,
            Err(error) => PutOutcome::Unknown(unavailable(key, &error)),
        }
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<Listed>, RecordError> {
        // A bucket lists folders.
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let folder = Path::from(format!("{FOLDER}/{folder}"));
        let records = self.bucket.list(Some(&folder)).try_filter_map(async |found| {
            let name = found.location.as_ref().strip_prefix(FOLDER).and_then(|name| name.strip_prefix('/'));
            let key =
                name.and_then(|name| name.parse().ok()).filter(|key: &RecordKey| key.as_str().starts_with(prefix));
            Ok(key.map(|key| (key, self.listed_version(found.e_tag))))
        });
        let listed = within(LISTING_TIMEOUT, records.try_collect::<Vec<_>>()).await;
        let mut records = listed.map_err(|error| unavailable(&prefix, &error))?;
        records.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(records)
    }

    pub(crate) async fn delete(&self, key: &RecordKey, version: &Version) -> Result<(), RecordError> {
        if self.get(key).await?.is_none_or(|record| record.version != *version) {
            return Ok(());
        }
        match within(REQUEST_TIMEOUT, self.bucket.delete(&path(key))).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(unavailable(key, &error)),
        }
    }

    /// The version in a listing, which has no generations, and in which Azure's ETags lack the quotes.
    fn listed_version(&self, e_tag: Option<String>) -> Option<Version> {
        let e_tag = e_tag.filter(|_| !self.by_generation)?;
        let quoted = if e_tag.contains('"') { e_tag } else { format!("\"{e_tag}\"") };
        Some(Version(quoted.into()))
    }

    fn version(
        &self,
        key: &RecordKey,
        e_tag: Option<String>,
        generation: Option<String>,
    ) -> Result<Version, RecordError> {
        let version = if self.by_generation { generation } else { e_tag };
        version.map(|version| Version(version.into())).ok_or_else(|| RecordError::Unavailable {
            key: key.to_string(),
            cause: "the answer of the bucket has no ETag, or no generation".to_owned(),
        })
    }
}

fn path(key: &RecordKey) -> Path {
    Path::from(format!("{FOLDER}/{key}"))
}

/// Also bounds what comes before a request, such as fetching credentials.
async fn within<T>(limit: Duration, request: impl Future<Output = object_store::Result<T>>) -> object_store::Result<T> {
    let no_answer = |_| Error::Generic { store: "bucket", source: format!("no answer within {limit:?}").into() };
    timeout(limit, request).await.unwrap_or_else(|elapsed| Err(no_answer(elapsed)))
}

fn unavailable(key: &impl ToString, error: &Error) -> RecordError {
    RecordError::Unavailable { key: key.to_string(), cause: with_causes(error) }
}
