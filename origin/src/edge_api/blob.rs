//! `/v1/blobs/{digest}`: immutable bytes, verified before the first of them is sent.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::task::spawn_blocking;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::BlobDigest;
use weir_shared::encoding::Encoding;
use weir_shared::process::serve::{Body, RequestBody};
use weir_shared::{conditional, range};

use super::EdgeApi;
use super::failure::Failure;
use super::file_body::FileBody;
use crate::blob_store::{BlobError, BlobStore};
use crate::service::Service;

/// How long a request waits for a blob to be built again.
const HEAL_WAIT: Duration = Duration::from_secs(10);

/// How long a request waits for its turn to verify.
const VERIFICATION_WAIT: Duration = Duration::from_secs(10);

/// What is read of a blob. It blocks, and reads all of it at worst.
type Read<T> = fn(&BlobStore, &BlobDigest) -> Result<T, BlobError>;

impl EdgeApi {
    /// The bytes of a blob, or a part of them.
    pub(super) async fn blob(
        &self,
        request: &Request<RequestBody>,
        digest: &BlobDigest,
    ) -> Result<Response<Body>, Failure> {
        let etag = format!("\"{digest}\"");
        if let Some(response) = not_modified(request.headers(), &etag) {
            return Ok(response);
        }
        if request.method() == Method::HEAD {
            let size = self.size(digest).await?;
            let mut response = described(&etag);
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
            return Ok(response);
        }
        let blob = self.read(digest, BlobStore::open_verified).await?;
        let (mut response, part) = part(request.headers(), digest, &etag, blob.size)?;
        *response.body_mut() = Body::stream(FileBody::new(blob.file, part, self.metrics.blob_sent_bytes.clone()));
        Ok(response)
    }

    /// What a blob holds, verified; one that is missing or corrupt is waited for while it is built again.
    pub(super) async fn read<T: Send + 'static>(&self, digest: &BlobDigest, read: Read<T>) -> Result<T, Failure> {
        match self.read_once(digest, read).await? {
            Ok(found) => return Ok(found),
            Err(BlobError::Unreadable(error)) => return Err(unreadable(digest, &error)),
            Err(BlobError::Missing | BlobError::Corrupt) => {}
        }
        self.heal(digest).await?;
        match self.read_once(digest, read).await? {
            Ok(found) => Ok(found),
            Err(BlobError::Unreadable(error)) => Err(unreadable(digest, &error)),
            Err(BlobError::Missing | BlobError::Corrupt) => Err(self.gone(digest).await),
        }
    }

    async fn read_once<T: Send + 'static>(
        &self,
        digest: &BlobDigest,
        read: Read<T>,
    ) -> Result<Result<T, BlobError>, Failure> {
        let permit = tokio::time::timeout(VERIFICATION_WAIT, self.verifications.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return Err(Failure::Overloaded) };
        let (publisher, wanted) = (self.publisher.clone(), *digest);
        let found = spawn_blocking(move || {
            let found = read(publisher.blobs(), &wanted);
            drop(permit);
            found
        });
        let found = found.await.map_err(|_| Failure::Internal)?;
        if matches!(found, Err(BlobError::Corrupt)) {
            self.metrics.blob_corruptions.inc();
            tracing::warn!(blob = %digest, "a blob on disk had other bytes than its digest says; it was removed");
        }
        Ok(found)
    }

    async fn size(&self, digest: &BlobDigest) -> Result<u64, Failure> {
        for healed in [false, true] {
            let (publisher, wanted) = (self.publisher.clone(), *digest);
            match spawn_blocking(move || publisher.blobs().size(&wanted)).await {
                Ok(Ok(size)) => return Ok(size),
                Ok(Err(BlobError::Unreadable(error))) => return Err(unreadable(digest, &error)),
                Ok(Err(_)) if !healed => self.heal(digest).await?,
                Ok(Err(_)) => return Err(self.gone(digest).await),
                Err(_) => return Err(Failure::Internal),
            }
        }
        Err(Failure::BlobUnavailable(*digest))
    }

    /// Has the owner of a blob build it again. An error when nobody owns it, or when that takes too long.
    async fn heal(&self, digest: &BlobDigest) -> Result<(), Failure> {
        let (service, descriptor) = self.reference(digest).await?.ok_or(Failure::NoSuchBlob(*digest))?;
        if descriptor.representation(Encoding::Gzip).is_some_and(|gzip| gzip.digest == *digest) {
            let made = tokio::time::timeout(HEAL_WAIT, self.gzip_again(service, descriptor.publication().digest));
            return made.await.unwrap_or(Err(Failure::BlobUnavailable(*digest)));
        }
        let agent = self.catalog.repository(&service.repository).ok_or(Failure::NoSuchBlob(*digest))?;
        tokio::time::timeout(HEAL_WAIT, agent.heal(*digest)).await.map_err(|_| Failure::BlobUnavailable(*digest))
    }

    /// After a heal that did not bring it back: whether it is wanted still.
    async fn gone(&self, digest: &BlobDigest) -> Failure {
        match self.reference(digest).await {
            Ok(Some(_)) => Failure::BlobUnavailable(*digest),
            Ok(None) => Failure::NoSuchBlob(*digest),
            Err(failure) => failure,
        }
    }

    /// A configured service and its descriptor that names the blob.
    async fn reference(&self, digest: &BlobDigest) -> Result<Option<(Arc<Service>, Descriptor)>, Failure> {
        let (publisher, wanted) = (self.publisher.clone(), *digest);
        match spawn_blocking(move || publisher.reference(&wanted)).await {
            Ok(Ok(reference)) => {
                let descriptor = reference.map(|reference| reference.descriptor);
                Ok(descriptor.and_then(|descriptor| {
                    let service = self.catalog.service(&descriptor.publication().service)?;
                    Some((service.clone(), descriptor))
                }))
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "whose blob it is cannot be read");
                Err(Failure::Internal)
            }
            Err(_) => Err(Failure::Internal),
        }
    }
}

/// The head of an answer with the bytes that are asked for, of `size`, and which those are.
pub(super) fn part(
    headers: &HeaderMap,
    blob: &BlobDigest,
    etag: &str,
    size: u64,
) -> Result<(Response<Body>, Range<u64>), Failure> {
    let mut response = described(etag);
    let part = match requested(headers, etag, size) {
        range::Requested::Unsatisfiable => return Err(Failure::RangeNotSatisfiable { blob: *blob, size }),
        range::Requested::Part(part) => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let of = HeaderValue::try_from(range::content_range(&part, size)).expect("digits are a header value");
            response.headers_mut().insert(header::CONTENT_RANGE, of);
            part
        }
        range::Requested::Full => 0..size,
    };
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(part.end - part.start));
    Ok((response, part))
}

fn unreadable(digest: &BlobDigest, error: &std::io::Error) -> Failure {
    tracing::warn!(blob = %digest, %error, "a blob cannot be read");
    Failure::BlobUnavailable(*digest)
}

/// What the headers ask of a blob of this size: a range only when `If-Range`, if there is one, names our tag.
fn requested(headers: &HeaderMap, etag: &str, size: u64) -> range::Requested {
    let applies = values(headers, &header::IF_RANGE).all(|tag| conditional::if_range(tag, etag));
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok()).filter(|_| applies);
    range::requested(range, size)
}

fn values<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}

/// The answer to whoever names the tag: they have the bytes, whatever became of ours.
pub(super) fn not_modified(headers: &HeaderMap, etag: &str) -> Option<Response<Body>> {
    let mut tags = values(headers, &header::IF_NONE_MATCH);
    tags.any(|tag| conditional::if_none_match_tag(tag, etag)).then(|| {
        let mut response = described(etag);
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    })
}

/// What stands above a blob's bytes, whole or in part, or none of them.
pub(super) fn described(etag: &str) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    let headers = response.headers_mut();
    headers.insert(header::ETAG, HeaderValue::try_from(etag).expect("a digest in quotes is a header value"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=31536000, immutable"));
    response
}
