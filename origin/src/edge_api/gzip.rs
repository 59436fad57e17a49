//! `POST /v1/services/{service}/versions/{digest}/gzip`: has the gzip form of a version made, once.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::{Method, Request, Response};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;
use weir_shared::name::ServiceName;
use weir_shared::process::serve::{Body, RequestBody};

use super::EdgeApi;
use super::descriptor::answer;
use super::failure::Failure;
use crate::blob_store::BlobStore;
use crate::publisher::PublishError;
use crate::service::Service;

/// How long a request waits for a form to be made. The making goes on, and finds whoever asks again.
const GZIP_WAIT: Duration = Duration::from_secs(60);

/// The forms that are being made: each by one, and not too many at a time.
#[derive(Clone)]
pub(super) struct Gzips {
    turns: Arc<Semaphore>,
    /// Room that the disk must have.
    min_free_bytes: u64,
    /// One lock for each tarball that somebody waits for.
    under_way: Arc<Mutex<HashMap<TarballDigest, Weak<tokio::sync::Mutex<()>>>>>,
}

impl Gzips {
    /// So many at a time as there are `turns`, while the disk has this room.
    pub(super) fn new(turns: Arc<Semaphore>, min_free_bytes: u64) -> Self {
        Self { turns, min_free_bytes, under_way: Arc::default() }
    }

    fn lock_of(&self, digest: &TarballDigest) -> Arc<tokio::sync::Mutex<()>> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = under_way.get(digest).and_then(Weak::upgrade) {
            return lock;
        }
        under_way.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        under_way.insert(*digest, Arc::downgrade(&lock));
        lock
    }
}

impl EdgeApi {
    /// The descriptor of a version, once its gzip form is there.
    pub(super) async fn gzip(
        &self,
        request: &Request<RequestBody>,
        name: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Response<Body>, Failure> {
        if *request.method() != Method::POST {
            return Err(Failure::OnlyPost);
        }
        let service = self.catalog.service(name).ok_or_else(|| Failure::NoSuchService(name.clone()))?;
        let made = tokio::time::timeout(GZIP_WAIT, self.with_gzip(&service, digest)).await;
        Ok(answer(request, &made.unwrap_or(Err(Failure::Overloaded))?))
    }

    /// The same for a form whose blob is missing or was corrupt. Boxed, because making it may heal the zstd form first.
    pub(super) fn gzip_again(
        &self,
        service: Arc<Service>,
        digest: TarballDigest,
    ) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + '_>> {
        Box::pin(async move { self.with_gzip(&service, &digest).await.map(drop) })
    }

    async fn with_gzip(&self, service: &Arc<Service>, digest: &TarballDigest) -> Result<Descriptor, Failure> {
        let one = self.gzips.lock_of(digest).lock_owned().await;
        let descriptor = self.version(&service.name, digest).await?;
        if self.publisher.has_gzip(&descriptor) {
            return Ok(descriptor);
        }
        let turn = self.gzips.turns.clone().acquire_owned().await.map_err(|_| Failure::Internal)?;
        let stored = descriptor.representation(Encoding::Zstd).ok_or(Failure::Internal)?;
        let zstd = self.read(&stored.digest, BlobStore::open_verified).await?.bytes;
        let (publisher, service, digest) = (self.publisher.clone(), service.clone(), *digest);
        let (name, metrics, min_free_bytes) = (service.name.clone(), self.metrics.clone(), self.gzips.min_free_bytes);
        // Whoever asked may go: what was begun is finished, and only then is it another's turn.
        let made = spawn_blocking(move || {
            let made = publisher.with_gzip(&service, &digest, zstd.reader(), min_free_bytes);
            drop((one, turn));
            made
        });
        match made.await {
            Ok(Ok(Some(descriptor))) => Ok(descriptor),
            Ok(Ok(None)) => Err(Failure::NoSuchVersion(name, digest)),
            Ok(Err(error)) => {
                metrics.gzips.with_label_values(&["failed"]).inc();
                tracing::warn!(service = %name, %digest, %error, "a gzip form cannot be made");
                Err(if matches!(error, PublishError::NoRoom { .. }) { Failure::NoRoom } else { Failure::Internal })
            }
            Err(_) => Err(Failure::Internal),
        }
    }
}
