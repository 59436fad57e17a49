//! `/v1/blobs/{digest}`: immutable bytes, each piece verified before the first of its bytes is sent.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::BlobDigest;
use weir_shared::encoding::Encoding;
use weir_shared::piece::PIECE_BYTES;
use weir_shared::process::serve::{Body, RequestBody};
use weir_shared::{conditional, range};

use super::EdgeApi;
use super::descriptors::Held;
use super::failure::Failure;
use super::piece_body::{PieceBody, Reading};
use crate::blob_store::{BlobError, BlobStore, OpenPieces};
use crate::service::Service;

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
        if let Some(response) = not_modified(request.headers(), &etag) {
            return Ok(response);
        }
        if request.method() == Method::HEAD {
            let size = self.size(digest).await?;
            let mut response = described(&etag);
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
            return Ok(response);
        }
        let range = range_that_applies(request.headers(), &etag).map(str::to_owned);
        // The piece that the answer begins in is verified before its head is sent: what is wrong there is healed first.
        let begin = move |blobs: &BlobStore, digest: &BlobDigest| {
            let blob = blobs.open_pieces(digest)?;
            let requested = range::requested(range.as_deref(), blob.size());
            let first = blobs.piece(&blob, first_byte(&requested) / PIECE_BYTES)?;
            Ok((blob, requested, first))
        };
        let mut held = self.descriptors.for_a_blob().await.ok_or(Failure::Overloaded)?;
        let (blob, requested, first) = self.read(digest, begin).await?;
        held.keep(blob.descriptors());
        let (mut response, part) = part(requested, digest, &etag, blob.size())?;
        let sent = self.metrics.blob_sent_bytes.clone();
        *response.body_mut() = Body::stream(PieceBody::new(part, first, self.pieces_of(*digest, blob, held), sent));
        Ok(response)
    }

    /// What reads the further pieces of a blob, each when it is this one's turn to verify.
    fn pieces_of(
        &self,
        digest: BlobDigest,
        blob: OpenPieces,
        held: Held,
    ) -> impl Fn(u64) -> Reading + Send + Unpin + use<> {
        // What it holds open is given up with it.
        let (api, blob) = (self.clone(), Arc::new((blob, held)));
        move |index| {
            let (api, blob) = (api.clone(), blob.clone());
            Box::pin(async move {
                let turn = api.verifications.clone().acquire_owned().await?;
                let piece = api.read_in_turn(&digest, turn, move |blobs, _| blobs.piece(&blob.0, index)).await;
                // The next one who asks for it has it built again.
                piece.map_err(|_| "the process ends")?.map_err(|error| {
                    tracing::warn!(blob = %digest, %error, index, "an answer breaks off: a piece cannot be sent");
                    error.into()
                })
            })
        }
    }

    /// What is `read` of a blob, verified; one that is missing or corrupt is waited for while it is built again. `read`
    /// may block, and read all of it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        digest: &BlobDigest,
        read: impl Fn(&BlobStore, &BlobDigest) -> Result<T, BlobError> + Clone + Send + 'static,
    ) -> Result<T, Failure> {
        match self.read_once(digest, read.clone()).await? {
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
        read: impl FnOnce(&BlobStore, &BlobDigest) -> Result<T, BlobError> + Send + 'static,
    ) -> Result<Result<T, BlobError>, Failure> {
        let turn = tokio::time::timeout(VERIFICATION_WAIT, self.verifications.clone().acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Failure::Overloaded) };
        self.read_in_turn(digest, turn, read).await
    }

    async fn read_in_turn<T: Send + 'static>(
        &self,
        digest: &BlobDigest,
        turn: OwnedSemaphorePermit,
        read: impl FnOnce(&BlobStore, &BlobDigest) -> Result<T, BlobError> + Send + 'static,
    ) -> Result<Result<T, BlobError>, Failure> {
        let (publisher, wanted) = (self.publisher.clone(), *digest);
        let found = spawn_blocking(move || {
            let found = read(publisher.blobs(), &wanted);
            drop(turn);
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
        let (publisher, wanted, snapshot) = (self.publisher.clone(), *digest, self.catalog.snapshot());
        let read =
            spawn_blocking(move || publisher.reference(&wanted, |service| snapshot.services.contains_key(service)));
        match read.await {
            Ok(Ok(reference)) => {
                let descriptor = reference.map(|reference| reference.descriptor);
                Ok(descriptor.and_then(|descriptor| {
                    let service = self.catalog.service(&descriptor.publication().service)?;
                    Some((service, descriptor))
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
    requested: range::Requested,
    blob: &BlobDigest,
    etag: &str,
    size: u64,
) -> Result<(Response<Body>, Range<u64>), Failure> {
    let mut response = described(etag);
    let part = match requested {
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

/// The range that the headers ask for: only when `If-Range`, if there is one, names our tag.
pub(super) fn range_that_applies<'h>(headers: &'h HeaderMap, etag: &str) -> Option<&'h str> {
    let applies = values(headers, &header::IF_RANGE).all(|tag| conditional::if_range(tag, etag));
    headers.get(header::RANGE).and_then(|value| value.to_str().ok()).filter(|_| applies)
}

fn first_byte(requested: &range::Requested) -> u64 {
    match requested {
        range::Requested::Part(part) => part.start,
        range::Requested::Full | range::Requested::Unsatisfiable => 0,
    }
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
