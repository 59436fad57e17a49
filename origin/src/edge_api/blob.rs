//! `/v1/blobs/{digest}`: immutable bytes, verified before the first of them is sent.

use std::ops::Range;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::task::spawn_blocking;
use weir_shared::digest::BlobDigest;
use weir_shared::process::serve::{Body, RequestBody};
use weir_shared::{conditional, range};

use super::EdgeApi;
use super::failure::Failure;
use super::file_body::FileBody;
use crate::blob_store::{BlobError, OpenBlob};

/// How long a request waits for a blob to be built again.
const HEAL_WAIT: Duration = Duration::from_secs(10);

/// How long a request waits for its turn to verify.
const VERIFICATION_WAIT: Duration = Duration::from_secs(10);

impl EdgeApi {
    /// The bytes of a blob, or a part of them.
    pub(super) async fn blob(
        &self,
        request: &Request<RequestBody>,
        digest: &BlobDigest,
    ) -> Result<Response<Body>, Failure> {
        let etag = format!("\"{digest}\"");
        if values(request.headers(), &header::IF_NONE_MATCH).any(|tag| conditional::if_none_match_tag(tag, &etag)) {
            // Whoever names the tag has the bytes, whatever became of ours.
            let mut response = described(&etag);
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Ok(response);
        }
        if request.method() == Method::HEAD {
            let size = self.size(digest).await?;
            let mut response = described(&etag);
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
            return Ok(response);
        }
        let blob = self.verified(digest).await?;
        let requested = match requested(request.headers(), &etag, blob.size) {
            range::Requested::Unsatisfiable => {
                return Err(Failure::RangeNotSatisfiable { blob: *digest, size: blob.size });
            }
            requested => requested,
        };
        let mut response = described(&etag);
        let part: Range<u64> = match requested {
            range::Requested::Part(part) => {
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                let of = range::content_range(&part, blob.size);
                let of = HeaderValue::try_from(of).expect("digits are a header value");
                response.headers_mut().insert(header::CONTENT_RANGE, of);
                part
            }
            _ => 0..blob.size,
        };
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(part.end - part.start));
        *response.body_mut() = Body::stream(FileBody::new(blob.file, part, self.metrics.blob_sent_bytes.clone()));
        Ok(response)
    }

    /// A blob whose bytes are good; one that is missing or corrupt is waited for while it is built again.
    async fn verified(&self, digest: &BlobDigest) -> Result<OpenBlob, Failure> {
        match self.open(digest).await? {
            Ok(blob) => return Ok(blob),
            Err(BlobError::Unreadable(error)) => return Err(unreadable(digest, &error)),
            Err(BlobError::Missing | BlobError::Corrupt) => {}
        }
        self.heal(digest).await?;
        match self.open(digest).await? {
            Ok(blob) => Ok(blob),
            Err(BlobError::Unreadable(error)) => Err(unreadable(digest, &error)),
            Err(BlobError::Missing | BlobError::Corrupt) => Err(self.gone(digest).await),
        }
    }

    async fn open(&self, digest: &BlobDigest) -> Result<Result<OpenBlob, BlobError>, Failure> {
        let permit = tokio::time::timeout(VERIFICATION_WAIT, self.verifications.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return Err(Failure::Overloaded) };
        let (publisher, wanted) = (self.publisher.clone(), *digest);
        let opened = spawn_blocking(move || {
            let opened = publisher.blobs().open_verified(&wanted);
            drop(permit);
            opened
        });
        let opened = opened.await.map_err(|_| Failure::Internal)?;
        if matches!(opened, Err(BlobError::Corrupt)) {
            self.metrics.blob_corruptions.inc();
            tracing::warn!(blob = %digest, "a blob on disk had other bytes than its digest says; it was removed");
        }
        Ok(opened)
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
        let owner = self.owner(digest).await?.ok_or(Failure::NoSuchBlob(*digest))?;
        let agent = self.catalog.repository(&owner).ok_or(Failure::NoSuchBlob(*digest))?;
        tokio::time::timeout(HEAL_WAIT, agent.heal(*digest)).await.map_err(|_| Failure::BlobUnavailable(*digest))
    }

    /// After a heal that did not bring it back: whether it is wanted still.
    async fn gone(&self, digest: &BlobDigest) -> Failure {
        match self.owner(digest).await {
            Ok(Some(_)) => Failure::BlobUnavailable(*digest),
            Ok(None) => Failure::NoSuchBlob(*digest),
            Err(failure) => failure,
        }
    }

    async fn owner(&self, digest: &BlobDigest) -> Result<Option<weir_shared::name::RepositoryName>, Failure> {
        let (publisher, wanted) = (self.publisher.clone(), *digest);
        match spawn_blocking(move || publisher.reference(&wanted)).await {
            Ok(Ok(reference)) => {
                let service = reference.and_then(|found| self.catalog.service(&found.descriptor.publication().service));
                Ok(service.map(|service| service.repository.clone()))
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "whose blob it is cannot be read");
                Err(Failure::Internal)
            }
            Err(_) => Err(Failure::Internal),
        }
    }
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

/// What stands above a blob's bytes, whole or in part, or none of them.
fn described(etag: &str) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    let headers = response.headers_mut();
    headers.insert(header::ETAG, HeaderValue::try_from(etag).expect("a digest in quotes is a header value"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=31536000, immutable"));
    response
}
