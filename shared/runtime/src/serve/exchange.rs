//! What the server keeps of a request until its response has been sent.

use http::{Method, Request, Response};
use weir_protocol::request_id::RequestId;

/// One request and its response.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) method: Method,
    id: RequestId,
}

impl Exchange {
    /// Accepts the id of a request, or makes one. The handler finds it in the headers.
    pub(super) fn begin<B>(request: &mut Request<B>) -> Self {
        let id = RequestId::of(request.headers()).unwrap_or_else(|| {
            let new = RequestId::new(fastrand::u64(..));
            new.insert_into(request.headers_mut());
            new
        });
        Self { method: request.method().clone(), id }
    }

    /// Names the request in its response.
    pub(super) fn respond<B>(&self, response: &mut Response<B>) {
        self.id.insert_into(response.headers_mut());
    }
}
