//! `/v1/blobs/{digest}/pieces`: what a blob's pieces are verified with.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use weir_shared::digest::BlobDigest;
use weir_shared::process::serve::{Body, RequestBody};
use weir_shared::range;

use super::EdgeApi;
use super::blob::{described, not_modified, part, range_that_applies};
use super::failure::Failure;
use crate::blob_store::BlobStore;

impl EdgeApi {
    /// The piece list of a blob. A `HEAD` does the same work: only that tells whether there is a list.
    pub(super) async fn pieces(
        &self,
        request: &Request<RequestBody>,
        digest: &BlobDigest,
    ) -> Result<Response<Body>, Failure> {
        let etag = format!("\"{digest}.pieces\"");
        if let Some(response) = not_modified(request.headers(), &etag) {
            return Ok(response);
        }
        let list = self.read(digest, BlobStore::pieces).await?.ok_or(Failure::NoPieces(*digest))?;
        let bytes = Bytes::from(list.to_bytes());
        if request.method() == Method::HEAD {
            let mut response = described(&etag);
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            return Ok(response);
        }
        let requested = range::requested(range_that_applies(request.headers(), &etag), bytes.len() as u64);
        let (mut response, part) = part(requested, digest, &etag, bytes.len() as u64)?;
        let at = |byte: u64| usize::try_from(byte).expect("the list is in memory");
        *response.body_mut() = Body::from(bytes.slice(at(part.start)..at(part.end)));
        Ok(response)
    }
}
