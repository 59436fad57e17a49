//! Objects: immutable, named by the BLAKE3 of their bytes, and stored under their repository.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod faulty;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutOptions};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;

use super::bucket;
use super::disk_cache::DiskCache;
use super::local_folder::LocalFolder;
use super::metrics::StoreMetrics;
use super::object_error::ObjectError;
use super::object_location::{Area, ObjectLocation, StoredObject};
use super::with_causes::with_causes;
use weir_model::failpoint;

/// The largest object. Frames and manifests are far smaller: edges accept at most 8 MiB.
const MAX_OBJECT_BYTES: u64 = 64 << 20;
/// The most concurrent requests to the store; more wait.
pub(crate) const CONCURRENT_REQUESTS: usize = 64;
/// The longest time of a request, with retries and the wait for a permit.
const REQUEST_DEADLINE: Duration = Duration::from_secs(120);
/// The longest time of a listing, which takes a bucket one request for 1,000 objects.
const LISTING_DEADLINE: Duration = Duration::from_secs(900);

/// The objects of an origin. Clones share the same store.
#[derive(Debug, Clone)]
pub struct Objects(Arc<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    store: Arc<dyn ObjectStore>,
    folder: Option<LocalFolder>,
    cache: Option<DiskCache>,
    requests: Arc<Semaphore>,
    metrics: StoreMetrics,
}

impl Objects {
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        folder: Option<LocalFolder>,
        cache: Option<DiskCache>,
        requests: Arc<Semaphore>,
        metrics: StoreMetrics,
    ) -> Self {
        Self(Arc::new(Inner { store, folder, cache, requests, metrics }))
    }

    /// The same objects, read without the cache.
    pub fn past_cache(&self) -> Self {
        Self(Arc::new(Inner { cache: None, ..Inner::clone(&self.0) }))
    }

    /// Whether the objects are in a local folder that exists.
    pub fn is_local(&self) -> bool {
        self.0.folder.as_ref().is_some_and(LocalFolder::exists)
    }

    /// Objects in any store, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn over(store: Arc<dyn ObjectStore>, metrics: StoreMetrics) -> Self {
        Self::new(store, None, None, Arc::new(Semaphore::new(CONCURRENT_REQUESTS)), metrics)
    }

    /// The same with a cache.
    #[cfg(any(test, feature = "testing"))]
    pub fn over_cached(store: Arc<dyn ObjectStore>, cache: std::path::PathBuf, metrics: StoreMetrics) -> Self {
        let cache = DiskCache::open(cache, 1 << 20, metrics.clone()).expect("the folder can be used");
        Self::new(store, None, Some(cache), Arc::new(Semaphore::new(CONCURRENT_REQUESTS)), metrics)
    }

    /// Stores an object, even if one of this name exists, because an earlier write may have failed halfway. The
    /// object is durable when this returns. After an error it may be readable, but is not durable.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]; the caller may try again.
    pub async fn put(
        &self,
        repository: &RepositoryName,
        area: Area,
        bytes: Bytes,
    ) -> Result<ObjectDigest, ObjectError> {
        let hashed = spawn_blocking(move || (ObjectDigest::of(&bytes), bytes)).await;
        let (digest, bytes) = hashed.map_err(|error| ObjectError::Unavailable(error.to_string()))?;
        self.put_hashed(&ObjectLocation { repository: repository.clone(), area, digest }, bytes).await?;
        Ok(digest)
    }

    /// Stores bytes whose digest is known.
    pub(crate) async fn put_hashed(&self, object: &ObjectLocation, bytes: Bytes) -> Result<(), ObjectError> {
        self.request("put", async {
            let size = bytes.len() as u64;
            if size > MAX_OBJECT_BYTES {
                let reason = format!("the object has {size} bytes, more than the limit of {MAX_OBJECT_BYTES}");
                return Err(ObjectError::Unavailable(format!("put {object}: {reason}")));
            }
            if let Some(folder) = &self.0.folder {
                let prepared = folder.prepare(&object.repository, object.area).await;
                prepared.map_err(|error| unavailable("put", object, &error))?;
            }
            let payload = bytes.clone().into();
            let written = self.0.store.put_opts(&path(object), payload, PutOptions::default()).await;
            written.map_err(|error| unavailable("put", object, &error))?;
            failpoint!("the object is stored");
            if let Some(cache) = &self.0.cache {
                cache.insert(object.clone(), bytes).await;
            }
            Ok(())
        })
        .await
    }

    /// Reads an object and verifies its digest.
    ///
    /// # Errors
    /// Any [`ObjectError`].
    pub async fn get(
        &self,
        repository: &RepositoryName,
        area: Area,
        digest: &ObjectDigest,
    ) -> Result<Bytes, ObjectError> {
        let object = ObjectLocation { repository: repository.clone(), area, digest: *digest };
        if let Some(cache) = &self.0.cache
            && let Some(bytes) = cache.get(&object).await
        {
            return Ok(bytes);
        }
        let bytes = self.request("get", self.read_verified(&object)).await?;
        if let Some(cache) = &self.0.cache {
            cache.insert(object, bytes.clone()).await;
        }
        Ok(bytes)
    }

    /// Reads again if the digest differs, because the bytes may have been damaged in transit. Only bytes that are
    /// stored damaged are [`ObjectError::Corrupt`].
    async fn read_verified(&self, object: &ObjectLocation) -> Result<Bytes, ObjectError> {
        for _ in 0..2 {
            if let Some(bytes) = self.read(object).await? {
                return Ok(bytes);
            }
        }
        Err(ObjectError::Corrupt(object.clone()))
    }

    /// The bytes of an object; `None` if they do not match the digest.
    async fn read(&self, object: &ObjectLocation) -> Result<Option<Bytes>, ObjectError> {
        let found = self.0.store.get_opts(&path(object), GetOptions::default()).await;
        let found = found.map_err(|error| self.read_error(object, &error))?;
        if found.meta.size > MAX_OBJECT_BYTES {
            return Ok(None);
        }
        let bytes = found.bytes().await.map_err(|error| unavailable("get", object, &error))?;
        let digest = object.digest;
        let verified = spawn_blocking(move || (ObjectDigest::of(&bytes) == digest).then_some(bytes)).await;
        verified.map_err(|error| unavailable("get", object, &error))
    }

    /// Whether the store has an object of this name. It may be corrupt, or not durable yet: only [`Objects::put`]
    /// ensures that.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    #[cfg(any(test, feature = "testing"))]
    pub async fn exists(
        &self,
        repository: &RepositoryName,
        area: Area,
        digest: &ObjectDigest,
    ) -> Result<bool, ObjectError> {
        let object = ObjectLocation { repository: repository.clone(), area, digest: *digest };
        self.request("exists", async {
            match self.0.store.head(&path(&object)).await.map_err(|error| self.read_error(&object, &error)) {
                Ok(_) => Ok(true),
                Err(ObjectError::Missing(_)) => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Lists the objects of an area, unsorted. In a local folder it also removes files of killed writes after an
    /// hour.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`]: the listing is incomplete.
    pub async fn list(&self, repository: &RepositoryName, area: Area) -> Result<Vec<StoredObject>, ObjectError> {
        self.request("list", async {
            let area_path = format!("{repository}/{}", area.as_str());
            let failed = |error: &dyn Error| unavailable("list", &area_path, error);
            if let Some(folder) = &self.0.folder {
                return folder.list(repository, area, SystemTime::now()).await.map_err(|error| failed(&error));
            }
            let prefix = Path::from(area_path.as_str());
            let listing = self.0.store.list(Some(&prefix)).map_err(|error| failed(&error));
            // Foreign names are ignored.
            let objects = listing.try_filter_map(async |found| {
                Ok(found.location.filename().and_then(|name| StoredObject::named(name, found.size)))
            });
            objects.try_collect().await
        })
        .await
    }

    /// Returns the identity of the store that owns the objects. Unowned objects get the given identity.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    pub async fn claim(&self, id: &str) -> Result<String, ObjectError> {
        self.request("get", async {
            let path = Path::from("store");
            let failed = |error: &object_store::Error| unavailable("get", &path, error);
            match self.0.store.get_opts(&path, GetOptions::default()).await {
                Ok(found) => {
                    let bytes = found.bytes().await.map_err(|error| failed(&error))?;
                    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
                }
                Err(object_store::Error::NotFound { .. }) if self.0.folder.as_ref().is_none_or(LocalFolder::exists) => {
                    let payload = Bytes::copy_from_slice(id.as_bytes()).into();
                    let written = self.0.store.put_opts(&path, payload, PutOptions::default()).await;
                    written.map(|_| id.to_owned()).map_err(|error| unavailable("put", &path, &error))
                }
                Err(error) => Err(failed(&error)),
            }
        })
        .await
    }

    /// The repositories that have objects, or a folder for them.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    pub async fn repositories(&self) -> Result<Vec<RepositoryName>, ObjectError> {
        self.request("list", async {
            let listing = self.0.store.list_with_delimiter(None).await;
            let listing = listing.map_err(|error| unavailable("list", &"repositories", &error))?;
            Ok(listing.common_prefixes.iter().filter_map(|folder| folder.filename()?.parse().ok()).collect())
        })
        .await
    }

    /// Deletes an object; a missing one is no error.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    pub async fn delete(
        &self,
        repository: &RepositoryName,
        area: Area,
        digest: &ObjectDigest,
    ) -> Result<(), ObjectError> {
        let object = ObjectLocation { repository: repository.clone(), area, digest: *digest };
        self.request("delete", async {
            match self.0.store.delete(&path(&object)).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(unavailable("delete", &object, &error)),
            }
        })
        .await?;
        if let Some(cache) = &self.0.cache {
            cache.remove(&object).await;
        }
        Ok(())
    }

    /// Sends a request once there is a permit, within the deadline, and counts its result.
    async fn request<T>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T, ObjectError>>,
    ) -> Result<T, ObjectError> {
        let permitted = async {
            let permit = self.0.requests.acquire().await;
            let _permit = permit.map_err(|error| ObjectError::Unavailable(error.to_string()))?;
            request.await
        };
        let deadline = if operation == "list" { LISTING_DEADLINE } else { REQUEST_DEADLINE };
        let no_answer = || format!("{operation}: no answer within {deadline:?}");
        let answered = timeout(deadline, permitted).await;
        let result = answered.unwrap_or_else(|_| Err(ObjectError::Unavailable(no_answer())));
        self.0.metrics.object_request(operation, &result);
        result
    }

    /// If the folder or bucket itself is gone, the object is not known to be missing.
    fn read_error(&self, object: &ObjectLocation, error: &object_store::Error) -> ObjectError {
        let is_there = match &self.0.folder {
            Some(folder) => folder.exists(),
            None => bucket::exists(error),
        };
        match error {
            object_store::Error::NotFound { .. } if is_there => ObjectError::Missing(object.clone()),
            error => unavailable("get", object, error),
        }
    }
}

fn path(object: &ObjectLocation) -> Path {
    let ObjectLocation { repository, area, digest } = object;
    Path::from(format!("{repository}/{}/{}", area.as_str(), digest.hex()))
}

fn unavailable(operation: &str, what: &dyn Display, error: &dyn Error) -> ObjectError {
    ObjectError::Unavailable(format!("{operation} {what}: {}", with_causes(error)))
}
