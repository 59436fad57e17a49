//! What the server keeps of a request until its response has been sent.

use std::time::Instant;

use http::{Method, Request, Response, Version};
use weir_protocol::request_id::RequestId;

/// One request and its response.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    pub(super) version: Version,
    pub(super) method: Method,
    pub(super) id: RequestId,
    /// The end of the request's headers.
    pub(super) begun: Instant,
}

impl Exchange {
    /// Accepts the id of a request, or makes one. The handler finds it in the headers.
    pub(super) fn begin<B>(version: Version, request: &mut Request<B>, begun: Instant) -> Self {
        let id = RequestId::of(request.headers()).unwrap_or_else(|| {
            let new = RequestId::new(fastrand::u64(..));
            new.insert_into(request.headers_mut());
            new
        });
        Self { version, method: request.method().clone(), id, begun }
    }

    /// Names the request in its response.
    pub(super) fn name<B>(&self, response: &mut Response<B>) {
        self.id.insert_into(response.headers_mut());
    }

    /// The version of HTTP, as in metrics.
    pub(super) fn protocol(&self) -> &'static str {
        match self.version {
            Version::HTTP_3 => "h3",
            Version::HTTP_2 => "h2",
            _ => "h1",
        }
    }
}
