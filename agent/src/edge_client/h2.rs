//! HTTP/2 to one edge.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use rustls::ClientConfig;
use weir_runtime::http_client::{Http2Client, http2_client};

use super::error::{RequestError, chain, is_tls};
use super::response::{Protocol, Response, ResponseBody};

/// A pooled HTTP/2 client.
pub(super) struct Http2 {
    client: Http2Client<Full<Bytes>>,
    idle_timeout: Duration,
}

impl Http2 {
    pub(super) fn new(tls: ClientConfig, idle_timeout: Duration) -> Self {
        Self { client: http2_client(tls), idle_timeout }
    }

    /// Sends a request and waits at most `timeout` for the response's head.
    pub(super) async fn request(&self, request: &Request<Bytes>, timeout: Duration) -> Result<Response, RequestError> {
        let request = request.clone().map(Full::new);
        let answer = tokio::time::timeout(timeout, self.client.request(request));
        let response = answer.await.map_err(|_| RequestError::Silent(timeout))?.map_err(|error| {
            if is_tls(&error) {
                RequestError::Certificate(chain(&error))
            } else if error.is_connect() {
                RequestError::Connect(chain(&error))
            } else {
                RequestError::Closed(chain(&error))
            }
        })?;
        let (head, body) = response.into_parts();
        Ok(Response {
            status: head.status,
            headers: head.headers,
            body: ResponseBody::h2(body, self.idle_timeout),
            protocol: Protocol::H2,
        })
    }
}
