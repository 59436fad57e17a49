//! HTTP/2 to one edge.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use rustls::ClientConfig;
use weir_runtime::http_client::{ClientOptions, Http2Client, http2_client_with};

use super::error::{RequestError, chain, is_tls};
use super::response::{Protocol, Response, ResponseBody};

/// A pooled HTTP/2 client, replaced when it is old.
pub(super) struct Http2 {
    tls: ClientConfig,
    options: ClientOptions,
    idle_timeout: Duration,
    max_age: Duration,
    /// With the time at which it is replaced. Its connections are younger.
    client: Mutex<Option<(Http2Client<Full<Bytes>>, Instant)>>,
}

impl Http2 {
    /// `max_age`: after this, new requests use a new connection.
    pub(super) fn new(tls: ClientConfig, options: ClientOptions, idle_timeout: Duration, max_age: Duration) -> Self {
        Self { tls, options, idle_timeout, max_age, client: Mutex::default() }
    }

    /// Sends a request and waits at most `timeout` for the response's head.
    pub(super) async fn request(&self, request: &Request<Bytes>, timeout: Duration) -> Result<Response, RequestError> {
        let request = request.clone().map(Full::new);
        let (client, renew_at) = self.client();
        let answer = tokio::time::timeout(timeout, client.request(request));
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
            connection_id: None,
            renew_at,
        })
    }

    /// The client. Of an old one the requests in flight continue, and then its connection ends.
    fn client(&self) -> (Http2Client<Full<Bytes>>, Instant) {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let fresh = client.take().filter(|(_, renew_at)| now < *renew_at);
        let fresh =
            fresh.unwrap_or_else(|| (http2_client_with(self.tls.clone(), self.options.clone()), now + self.max_age));
        client.insert(fresh).clone()
    }
}
