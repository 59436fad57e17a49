//! `/v1/objects/{repository}/{digest}`: immutable bytes, verified before the first one is sent.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body as HttpBody, Frame};
use prometheus::IntCounter;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};
use weir_protocol::conditional;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;
use weir_protocol::problem::Problem;
use weir_runtime::serve::{Body, BoxError, RequestBody};
use weir_store::{Area, ObjectError};

use super::EdgeApi;
use super::{only_reads, problems};

/// The longest wait for the rebuild of an object.
const REBUILD_WAIT: Duration = Duration::from_secs(10);

/// The delay before an unreadable object in a local folder is read again.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The longest wait for a permit to hold an object in memory.
const PERMIT_WAIT: Duration = Duration::from_secs(10);

impl EdgeApi {
    pub(super) async fn object(
        &self,
        request: &Request<RequestBody>,
        repository: &RepositoryName,
        digest: &ObjectDigest,
    ) -> Result<Response<Body>, Problem> {
        let etag = format!("\"{digest}\"");
        let known = request.headers().get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let mut response = Response::new(Body::Empty);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=31536000, immutable"));
        headers.insert(header::ETAG, HeaderValue::try_from(&etag).expect("a digest in quotes is a header value"));
        if known.into_iter().any(|tag| conditional::if_none_match_tag(tag, &etag)) {
            // The client has the bytes of this digest, whatever the state of the stored copy.
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Ok(response);
        }
        let (bytes, permit) = self.read(repository, digest).await?;
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        if request.method() == Method::GET {
            let sent = self.metrics.object_sent_bytes.clone();
            *response.body_mut() = Body::stream(Sending { bytes: Some(bytes), sent, _permit: permit });
        }
        Ok(response)
    }

    /// Reads an object. A missing, corrupt or permanently unreadable one is rebuilt if a version references it. A
    /// request holds no memory and no permit while it waits for that.
    async fn read(
        &self,
        repository: &RepositoryName,
        digest: &ObjectDigest,
    ) -> Result<(Bytes, OwnedSemaphorePermit), Problem> {
        let mut read = self.read_once(repository, digest).await?;
        if matches!(read, Err(ObjectError::Unavailable(_))) && self.publisher.repositories.objects().is_local() {
            // A single file may be permanently unreadable on a working disk; a rebuild replaces it.
            sleep(READ_AGAIN_AFTER).await;
            read = self.read_once(repository, digest).await?;
        }
        match read {
            Err(ObjectError::Missing(_) | ObjectError::Corrupt(_)) => {}
            Err(ObjectError::Unavailable(_)) if self.publisher.repositories.objects().is_local() => {}
            read => return read.map_err(|error| unavailable(digest, &error)),
        }
        // Each lookup reads the manifests of a repository.
        let lookup = timeout(PERMIT_WAIT, self.reference_lookups.acquire()).await;
        let Ok(Ok(lookup)) = lookup else { return Err(problems::overloaded()) };
        Box::pin(self.refresh(repository)).await?;
        let reference = self.publisher.queries.find_reference(repository, digest).await;
        drop(lookup);
        let reference = reference.map_err(|error| {
            tracing::warn!(object = %digest, %error, "the version that references an object cannot be looked up");
            problems::object_unavailable(digest)
        })?;
        let Some(version) = reference else {
            let detail = format!(
                "No version of repository `{repository}` references this object: request the descriptor again."
            );
            let problem = Problem::new(StatusCode::NOT_FOUND, "no-such-object", "No such object", detail);
            return Err(problem.about("object", digest));
        };
        // Only the owner has a worker.
        let worker = self.catalog.repository(repository).ok_or_else(|| problems::object_unavailable(digest))?;
        // A longer build continues, and helps the next request.
        let _ = timeout(REBUILD_WAIT, worker.rebuild(*digest, version)).await;
        self.read_once(repository, digest).await?.map_err(|error| unavailable(digest, &error))
    }

    /// The documents of a shard of the access list. They have a permit, as objects do.
    pub(super) async fn access_shard(
        &self,
        request: &Request<RequestBody>,
        digest: &ObjectDigest,
    ) -> Result<Response<Body>, Problem> {
        only_reads(request.method())?;
        let permit = self.object_permit().await?;
        let bytes = self.events.shard(digest).ok_or_else(|| Problem::no_such_shard(digest))?;
        let mut response = Response::new(Body::Empty);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        if request.method() == Method::GET {
            let sent = self.metrics.object_sent_bytes.clone();
            *response.body_mut() = Body::stream(Sending { bytes: Some(bytes), sent, _permit: permit });
        }
        Ok(response)
    }

    async fn object_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = timeout(PERMIT_WAIT, self.object_permits.clone().acquire_owned()).await;
        permit.ok().and_then(Result::ok).ok_or_else(problems::overloaded)
    }

    /// Reads an object once, with a permit to hold it in memory.
    async fn read_once(
        &self,
        repository: &RepositoryName,
        digest: &ObjectDigest,
    ) -> Result<Result<(Bytes, OwnedSemaphorePermit), ObjectError>, Problem> {
        let permit = self.object_permit().await?;
        let read = self.publisher.repositories.objects().get(repository, Area::Public, digest).await;
        if let Err(ObjectError::Corrupt(at)) = &read {
            tracing::warn!(object = %at, "the bytes of a stored object do not match its digest");
        }
        Ok(read.map(|bytes| (bytes, permit)))
    }
}

fn unavailable(digest: &ObjectDigest, error: &ObjectError) -> Problem {
    tracing::warn!(%error, "an object cannot be sent");
    problems::object_unavailable(digest)
}

/// A response body that holds its permit until the object was sent.
struct Sending {
    bytes: Option<Bytes>,
    sent: IntCounter,
    _permit: OwnedSemaphorePermit,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.bytes.take().map(|bytes| {
            self.sent.inc_by(bytes.len() as u64);
            Ok(Frame::data(bytes))
        }))
    }
}
