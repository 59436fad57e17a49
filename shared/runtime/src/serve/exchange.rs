//! What the server keeps of a request until its response has been sent.

use std::time::Instant;

use http::{HeaderValue, Method, Request, Response, Version, header};
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

    /// Names the request in its response. What is JSON may be taken for nothing else: its texts are of others.
    pub(super) fn name<B>(&self, response: &mut Response<B>) {
        let headers = response.headers_mut();
        self.id.insert_into(headers);
        if headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().ends_with(b"json")) {
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
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
