//! Requests to one origin: HTTP/2, mutual TLS, a timeout for every wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::Deserialize;
use weir_cache::OriginError;
use weir_cache::clock::Clock;
use weir_protocol::event::{self, Cursor};
use weir_protocol::freshness::{HeartbeatAnswer, HeartbeatRequest, MAX_ANSWER_BYTES};
use weir_protocol::members::{self, Members};
use weir_protocol::name::NodeName;
use weir_protocol::request_id::RequestId;
use weir_protocol::route::Route;
use weir_runtime::http_client::{CONNECT_TIMEOUT, Http2Client, read_body, root_cause};

use super::breaker::{Breaker, Circuit};
use super::clients::Clients;
use super::metrics::OriginMetrics;
use crate::config::OriginConfig;

/// The timeout of a response's head, connecting included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for an object, which the origin may have to read from a remote store or to rebuild.
const OBJECT_HEAD_TIMEOUT: Duration = Duration::from_secs(40);

/// How long a body may stall.
const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest problem document that is read, in bytes.
const MAX_PROBLEM_BYTES: usize = 16 << 10;

/// The longest `detail` that is forwarded, in characters.
const MAX_DETAIL_CHARS: usize = 500;

#[derive(Debug)]
pub(crate) struct Origin {
    authority: Authority,
    /// The `[[origin]]` whose certificates it is reached with, as its index in the configuration.
    configured: usize,
    clients: RwLock<Clients>,
    metrics: OriginMetrics,
    clock: Clock,
    breaker: Mutex<Breaker>,
    reached: AtomicBool,
    last_error: Mutex<Option<String>>,
}

/// The timeout of a response, and what exceeding it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeadTimeout {
    /// For stored data: the origin counts as failed.
    Fast,
    /// For data that has to be read or built: the origin is slow, and maybe only for this object.
    Slow(Duration),
}

impl HeadTimeout {
    /// For an object. `is_last`: nobody else is asked for it.
    fn object(is_last: bool) -> Self {
        HeadTimeout::Slow(if is_last { OBJECT_HEAD_TIMEOUT } else { HEAD_TIMEOUT })
    }

    fn duration(self) -> Duration {
        match self {
            HeadTimeout::Fast => HEAD_TIMEOUT,
            HeadTimeout::Slow(wait) => wait,
        }
    }
}

/// The headers of a request, and what it posts: nothing with a GET.
#[derive(Debug, Clone)]
struct Content {
    headers: HeaderMap,
    json: Bytes,
}

impl Content {
    fn get(headers: HeaderMap) -> Self {
        Self { headers, json: Bytes::new() }
    }

    fn post(json: impl Into<Bytes>) -> Self {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        Self { headers, json: json.into() }
    }
}

#[derive(Default, Deserialize)]
struct ProblemDocument {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    detail: String,
}

impl Origin {
    /// The origin of an `[[origin]]`, which is number `configured` of the configuration.
    pub(crate) fn new(
        config: &OriginConfig,
        configured: usize,
        clock: Clock,
        metrics: OriginMetrics,
    ) -> anyhow::Result<Self> {
        let authority = config.authority()?;
        let clients = Clients::read(config)?;
        if clients.have_expired() {
            let file = config.client_certificate.display();
            tracing::warn!(origin = %authority, %file, "the client certificate has expired; the origin will reject it");
        }
        Ok(Self::with(authority, configured, clients, clock, metrics))
    }

    fn with(authority: Authority, configured: usize, clients: Clients, clock: Clock, metrics: OriginMetrics) -> Self {
        metrics.create_series(authority.as_str());
        metrics.client_certificate(authority.as_str(), clients.not_after);
        Self {
            authority,
            configured,
            clients: RwLock::new(clients),
            metrics,
            clock,
            breaker: Mutex::default(),
            reached: AtomicBool::new(false),
            last_error: Mutex::default(),
        }
    }

    /// Another member of its cluster, which is reached with the same certificates.
    pub(super) fn sibling(&self, authority: Authority) -> Self {
        Self::with(authority, self.configured, self.clients(), self.clock, self.metrics.clone())
    }

    /// The index of its `[[origin]]`.
    pub(crate) fn configured(&self) -> usize {
        self.configured
    }

    /// Its `host:port`.
    pub(crate) fn name(&self) -> &str {
        self.authority.as_str()
    }

    /// Replaces the clients for new requests. Requests in flight and an open event stream keep the old ones.
    pub(crate) fn replace(&self, clients: Clients) {
        self.metrics.client_certificate(self.name(), clients.not_after);
        *self.clients.write().unwrap_or_else(PoisonError::into_inner) = clients;
    }

    /// It has left its cluster.
    pub(crate) fn left(&self) {
        self.metrics.left(self.name());
    }

    fn clients(&self) -> Clients {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has responded, and its circuit is closed.
    pub(crate) fn is_up(&self) -> bool {
        self.was_reached() && !self.is_down()
    }

    /// Whether its circuit is not closed.
    pub(crate) fn is_down(&self) -> bool {
        self.circuit() != Circuit::Closed
    }

    pub(crate) fn circuit(&self) -> Circuit {
        self.breaker().circuit()
    }

    /// Whether the last request failed, or there was none.
    pub(super) fn needs_probe(&self) -> bool {
        !self.was_reached() || !self.breaker().is_healthy()
    }

    /// Whether it has ever responded with anything but `401` or `403`.
    pub(crate) fn was_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// The error of the last request; `None` when it succeeded.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().ok()?.clone()
    }

    pub(crate) fn bad_response(&self, reason: &str) -> OriginError {
        let error = OriginError::BadResponse { origin: self.name().to_owned(), reason: reason.to_owned() };
        tracing::warn!(origin = self.name(), %error, "an origin violated the protocol");
        error
    }

    /// Requests a descriptor, or a list of them, of up to `limit` bytes; `None` when its entity tag is still `if_none_match`.
    /// Returns its `Age`, too, with which a shield answers.
    pub(super) async fn descriptor(
        &self,
        route: &Route,
        limit: usize,
        if_none_match: Option<&str>,
        request_id: Option<&RequestId>,
    ) -> Result<Option<(Bytes, Duration)>, OriginError> {
        let mut headers = HeaderMap::new();
        request_id.into_iter().for_each(|id| id.insert_into(&mut headers));
        if let Some(tag) = if_none_match {
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_str(tag).expect("a tag of numbers"));
        }
        let response = self.get(route.label(), &route.to_string(), headers).await?;
        match response.status() {
            StatusCode::NOT_MODIFIED if if_none_match.is_some() => Ok(None),
            StatusCode::OK => {
                let age = response.headers().get(header::AGE).and_then(|age| age.to_str().ok()?.parse().ok());
                let age = Duration::from_secs(age.unwrap_or_default());
                Ok(Some((self.read(response, limit).await?, age)))
            }
            status => Err(self.bad_response(&format!("status {status} for a descriptor"))),
        }
    }

    /// Reads the body of a response, of up to `limit` bytes.
    pub(super) async fn read(&self, response: Response<Incoming>, limit: usize) -> Result<Bytes, OriginError> {
        let bytes = read_body(response.into_body(), limit, BODY_IDLE_TIMEOUT)
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        self.metrics.received(bytes.len());
        Ok(bytes)
    }

    /// Requests the list of members; `None` when the origin has none.
    pub(super) async fn members(&self) -> Result<Option<Members>, OriginError> {
        let response = match self.get("members", members::PATH, HeaderMap::new()).await {
            Err(OriginError::NotFound) => return Ok(None),
            got => got?,
        };
        let bytes = self.read(response, members::MAX_MEMBERS_BYTES).await?;
        Members::parse(&bytes).map(Some).map_err(|error| self.bad_response(&error.to_string()))
    }

    /// Requests freshness statements. An origin gives those of services that it owns.
    ///
    /// # Errors
    /// The request failed, or its response cannot be read.
    pub(super) async fn heartbeats(&self, request: &HeartbeatRequest) -> Result<HeartbeatAnswer, OriginError> {
        let (route, content) = (Route::Heartbeats, Content::post(request.to_json()));
        let response = self.request_within(HeadTimeout::Fast, route.label(), &route.to_string(), content).await?;
        match response.status() {
            StatusCode::OK => {
                let bytes = self.read(response, MAX_ANSWER_BYTES).await?;
                HeartbeatAnswer::parse(&bytes).map_err(|error| self.bad_response(&error.to_string()))
            }
            status => Err(self.bad_response(&format!("status {status} for freshness statements"))),
        }
    }

    /// The name of this edge, as its certificate for this origin proves it.
    pub(crate) fn edge_name(&self) -> Option<NodeName> {
        self.clients().edge
    }

    /// Sends what agents run. Returns whether the origin has accepted it; otherwise it lacks what came before.
    ///
    /// # Errors
    /// The request failed, or the origin does not accept it.
    pub(crate) async fn observed(&self, path: &str, message: Bytes) -> Result<bool, OriginError> {
        let response = self.request_within(HeadTimeout::Fast, "observed", path, Content::post(message)).await?;
        match response.status() {
            StatusCode::NO_CONTENT => Ok(true),
            StatusCode::CONFLICT => Ok(false),
            // A shield that does not pass it on.
            StatusCode::METHOD_NOT_ALLOWED => Err(OriginError::NotFound),
            status => Err(self.bad_response(&format!("status {status} for what agents run"))),
        }
    }

    /// Requests an object. `is_last`: nobody else is asked when this takes long.
    ///
    /// # Errors
    /// [`OriginError::NotFound`] when it does not have the object, or another error of the request.
    pub(crate) async fn object(
        &self,
        route: &Route,
        headers: HeaderMap,
        is_shield: bool,
        is_last: bool,
    ) -> Result<Response<Incoming>, OriginError> {
        let kind = if is_shield { "shield" } else { route.label() };
        let response =
            self.request_within(HeadTimeout::object(is_last), kind, &route.to_string(), Content::get(headers)).await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => Err(self.bad_response(&format!("status {status} for an object"))),
        }
    }

    /// Counts bytes of an object.
    pub(crate) fn received(&self, bytes: usize) {
        self.metrics.received(bytes);
    }

    /// Opens the event stream after the cursor `since`, or with a snapshot.
    pub(crate) async fn events(&self, since: Option<&Cursor>) -> Result<Incoming, OriginError> {
        let route = Route::Events;
        let since = since.map(|cursor| format!("&since={cursor}")).unwrap_or_default();
        let path = format!("{route}?{}{since}", event::KNOWS_SHARDS);
        let response = self
            .send(HeadTimeout::Fast, &self.clients().events, route.label(), &path, Content::get(HeaderMap::new()))
            .await?;
        match response.status() {
            StatusCode::OK => Ok(response.into_body()),
            StatusCode::NOT_FOUND => Err(OriginError::NotFound),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(self.refused(response).await),
            status => Err(self.bad_response(&format!("status {status} for the event stream"))),
        }
    }

    /// Sends a request whose response only the circuit breaker uses.
    pub(super) async fn probe(&self) {
        // `send` records the outcome.
        let content = Content::get(HeaderMap::new());
        let _ = self.send(HeadTimeout::Fast, &self.clients().requests, "probe", "/v1/services", content).await;
    }

    /// Sends a request. A status that is no success becomes an error.
    pub(super) async fn get(
        &self,
        kind: &'static str,
        path: &str,
        headers: HeaderMap,
    ) -> Result<Response<Incoming>, OriginError> {
        self.request_within(HeadTimeout::Fast, kind, path, Content::get(headers)).await
    }

    async fn request_within(
        &self,
        timeout: HeadTimeout,
        kind: &'static str,
        path: &str,
        content: Content,
    ) -> Result<Response<Incoming>, OriginError> {
        let (was_up, sent) = (self.is_up(), self.clock.now());
        let failed_at_once = || self.clock.now().since(sent) < CONNECT_TIMEOUT;
        let client = self.clients().requests;
        let response = match self.send(timeout, &client, kind, path, content.clone()).await {
            // A pooled connection may be dead: retry once with a new one. An origin that hangs is not waited for again:
            // another one may answer.
            Err(OriginError::Unreachable { .. }) if was_up && failed_at_once() => {
                self.send(timeout, &client, kind, path, content).await?
            }
            sent => sent?,
        };
        match response.status() {
            StatusCode::NOT_FOUND => Err(OriginError::NotFound),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
            | StatusCode::LOOP_DETECTED => Err(self.refused(response).await),
            _ => Ok(response),
        }
    }

    async fn send(
        &self,
        timeout: HeadTimeout,
        client: &Http2Client<Full<Bytes>>,
        kind: &'static str,
        path: &str,
        content: Content,
    ) -> Result<Response<Incoming>, OriginError> {
        if !self.breaker().admit(self.clock.now()) {
            self.metrics.answered(kind, "circuit_open");
            let reason = last_failure(self.name(), self.last_error().as_deref());
            return Err(self.unreachable(format!("{reason}; the circuit is open")));
        }
        let mut request = Request::builder()
            .method(if content.json.is_empty() { Method::GET } else { Method::POST })
            .uri(format!("https://{}{path}", self.authority))
            .body(Full::new(content.json))
            .expect("an authority that was checked and a path of the protocol");
        *request.headers_mut() = content.headers;
        let wait = timeout.duration();
        let answered = match tokio::time::timeout(wait, client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.unreachable(root_cause(&error))),
            Err(_) => Err(OriginError::TimedOut { origin: self.name().to_owned(), after: wait }),
        };
        match &answered {
            Ok(response) => {
                let rejection = rejection(response.status());
                self.metrics.answered(kind, response.status().as_str());
                self.reached.fetch_or(rejection.is_none(), Ordering::Relaxed);
                self.record_outcome(rejection.map(|why| format!("origin {} {why}", self.authority)));
            }
            Err(error) => {
                self.metrics.answered(kind, error.label());
                if timeout != HeadTimeout::Fast && matches!(error, OriginError::TimedOut { .. }) {
                    self.breaker().slow();
                } else {
                    self.record_outcome(Some(error.to_string()));
                }
            }
        }
        match answered {
            Ok(response) => match rejection(response.status()) {
                None => Ok(response),
                Some(why) => Err(self.unreachable(format!("it {why}"))),
            },
            failed => failed,
        }
    }

    /// Reports the outcome of a request to the circuit breaker.
    fn record_outcome(&self, error: Option<String>) {
        let (before, after) = {
            let mut breaker = self.breaker();
            let before = breaker.circuit();
            match &error {
                None => breaker.answered(),
                Some(_) => breaker.failed(self.clock.now(), fastrand::f64()),
            }
            (before, breaker.circuit())
        };
        match &error {
            Some(error) if before == Circuit::Closed && after == Circuit::Open => {
                self.metrics.circuit_opened(self.name());
                tracing::warn!(origin = self.name(), %error, "an origin cannot be reached");
            }
            None if before != Circuit::Closed => tracing::info!(origin = self.name(), "an origin can be reached again"),
            _ => {}
        }
        self.metrics.up(self.name(), self.is_up());
        if let Ok(mut last) = self.last_error.lock() {
            *last = error;
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn unreachable(&self, reason: String) -> OriginError {
        OriginError::Unreachable { origin: self.name().to_owned(), reason }
    }

    pub(super) async fn refused(&self, response: Response<Incoming>) -> OriginError {
        let status = response.status();
        let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let body = read_body(response.into_body(), MAX_PROBLEM_BYTES, BODY_IDLE_TIMEOUT).await.unwrap_or_default();
        let document: ProblemDocument = serde_json::from_slice(&body).unwrap_or_default();
        let reason: String = document.detail.chars().filter(|c| !c.is_control()).take(MAX_DETAIL_CHARS).collect();
        let detail = if reason.is_empty() { format!("The origin answered {status} without a reason.") } else { reason };
        let kind = document.r#type.strip_prefix("urn:weir:problem:").unwrap_or_default().to_owned();
        OriginError::Refused { status: status.as_u16(), kind, detail, retry_after }
    }
}

/// The last error without the prefix that names the origin, which the new error repeats.
fn last_failure(name: &str, last_error: Option<&str>) -> String {
    let last = last_error.unwrap_or("it did not respond");
    let last = last.strip_prefix("origin ").and_then(|last| last.strip_prefix(name)).unwrap_or(last).trim_start();
    last.strip_prefix("cannot be reached: ").unwrap_or(last).to_owned()
}

/// The error of a response that rejects the edge itself, whatever the request.
fn rejection(status: StatusCode) -> Option<String> {
    let is_rejection = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    is_rejection.then(|| {
        format!(
            "answered {status}: it rejects the client certificate of this edge; its log has the reason. Check \
             `client_certificate`, and `client_ca` of the origin"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_circuit_reports_the_last_error_once() {
        for (last, expected) in [
            (Some("origin o:1 cannot be reached: Connection refused"), "Connection refused"),
            (Some("origin o:1 answers 401"), "answers 401"),
            (None, "it did not respond"),
        ] {
            assert_eq!(last_failure("o:1", last), expected);
        }
    }
}
