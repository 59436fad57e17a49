//! The requests to one origin: HTTP/2, mutual TLS, every wait with a deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Empty;
use hyper::body::Incoming;
use serde::Deserialize;
use weir_protocol::descriptor::MAX_DESCRIPTOR_BYTES;
use weir_protocol::event::Cursor;
use weir_protocol::route::Route;
use weir_runtime::http_client::{Http2Client, plain_words, read_body};

use super::breaker::{Breaker, Circuit};
use super::clients::Clients;
use super::error::OriginError;
use super::metrics::OriginMetrics;
use crate::clock::Clock;
use crate::config::OriginConfig;

/// How long an origin may take to the head of its answer, the connection included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for an object, which the origin may have to read from a remote store, and to build again when it is damaged.
const OBJECT_HEAD_TIMEOUT: Duration = Duration::from_secs(40);

/// How long an origin may be silent in the middle of a body.
const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest problem document that is read, in bytes.
const MAX_PROBLEM_BYTES: usize = 16 << 10;

/// The longest explanation of an origin's that is passed on, in characters.
const MAX_DETAIL_CHARS: usize = 500;

/// One origin.
#[derive(Debug)]
pub(crate) struct Origin {
    authority: Authority,
    clients: RwLock<Clients>,
    pub(super) metrics: OriginMetrics,
    clock: Clock,
    breaker: Mutex<Breaker>,
    reached: AtomicBool,
    last_error: Mutex<Option<String>>,
}

/// How long an answer may take, and what it says when it takes longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// It is at hand: the origin is taken for dead.
    AtHand,
    /// It has to be read or made, within this time: the origin is slow at this, and perhaps at nothing else.
    ToBeMade(Duration),
}

impl Patience {
    fn with(kind: &str) -> Self {
        match kind {
            "object" => Patience::ToBeMade(OBJECT_HEAD_TIMEOUT),
            _ => Patience::AtHand,
        }
    }

    fn wait(self) -> Duration {
        match self {
            Patience::AtHand => HEAD_TIMEOUT,
            Patience::ToBeMade(wait) => wait,
        }
    }
}

/// What is read of an origin's problem.
#[derive(Default, Deserialize)]
struct ProblemDocument {
    #[serde(default)]
    detail: String,
}

impl Origin {
    pub(crate) fn new(config: &OriginConfig, clock: Clock, metrics: OriginMetrics) -> anyhow::Result<Self> {
        let authority = config.authority()?;
        let clients = Clients::read(config)?;
        if clients.have_ended() {
            let file = config.client_certificate.display();
            tracing::warn!(origin = %authority, %file, "the client certificate has ended: the origin will not answer");
        }
        metrics.begin(authority.as_str());
        metrics.client_certificate(authority.as_str(), clients.not_after);
        Ok(Self {
            authority,
            clients: RwLock::new(clients),
            metrics,
            clock,
            breaker: Mutex::default(),
            reached: AtomicBool::new(false),
            last_error: Mutex::default(),
        })
    }

    /// Its `host:port`.
    pub(crate) fn name(&self) -> &str {
        self.authority.as_str()
    }

    /// Questions are put by these from now on. Those that were put already, and an event stream that is open, go on as they
    /// began.
    pub(crate) fn replace(&self, clients: Clients) {
        self.metrics.client_certificate(self.name(), clients.not_after);
        *self.clients.write().unwrap_or_else(PoisonError::into_inner) = clients;
    }

    fn clients(&self) -> Clients {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has answered and may be asked.
    pub(crate) fn is_up(&self) -> bool {
        self.was_reached() && !self.is_down()
    }

    /// Whether it is left alone because it does not answer.
    pub(crate) fn is_down(&self) -> bool {
        self.circuit() != Circuit::Closed
    }

    /// The state of its circuit breaker.
    pub(crate) fn circuit(&self) -> Circuit {
        self.breaker().circuit()
    }

    /// Whether nobody knows just now that it answers.
    pub(super) fn is_in_doubt(&self) -> bool {
        !self.was_reached() || !self.breaker().is_sound()
    }

    /// Whether it has ever answered, and not to say that this edge is none of its own.
    pub(crate) fn was_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// What went wrong last, until it answers again.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().ok()?.clone()
    }

    pub(crate) fn bad_answer(&self, reason: &str) -> OriginError {
        let error = OriginError::BadAnswer { origin: self.name().to_owned(), reason: reason.to_owned() };
        tracing::warn!(origin = self.name(), %error, "an origin's answer makes no sense");
        error
    }

    /// Asks for a descriptor; `None` when it is the one with the entity tag `held`.
    pub(super) async fn descriptor(&self, route: &Route, held: Option<&str>) -> Result<Option<Bytes>, OriginError> {
        let mut headers = HeaderMap::new();
        if let Some(tag) = held {
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_str(tag).expect("a tag of numbers"));
        }
        let response = self.get(route.label(), &route.to_string(), headers).await?;
        match response.status() {
            StatusCode::NOT_MODIFIED if held.is_some() => Ok(None),
            StatusCode::OK => Ok(Some(self.read_descriptor(response).await?)),
            status => Err(self.bad_answer(&format!("status {status} in answer to a request for a descriptor"))),
        }
    }

    /// The bytes of a descriptor.
    pub(super) async fn read_descriptor(&self, response: Response<Incoming>) -> Result<Bytes, OriginError> {
        self.read(response, MAX_DESCRIPTOR_BYTES).await
    }

    /// The body of an answer, of up to `limit` bytes.
    pub(super) async fn read(&self, response: Response<Incoming>, limit: usize) -> Result<Bytes, OriginError> {
        let bytes = read_body(response.into_body(), limit, BODY_IDLE_TIMEOUT)
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        self.metrics.received(bytes.len());
        Ok(bytes)
    }

    /// Asks for an object, and gives its bytes as they come.
    pub(super) async fn object(&self, route: &Route, no_cache: bool) -> Result<Incoming, OriginError> {
        let mut headers = HeaderMap::new();
        if no_cache {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        }
        let response = self.get(route.label(), &route.to_string(), headers).await?;
        match response.status() {
            StatusCode::OK => Ok(response.into_body()),
            status => Err(self.bad_answer(&format!("status {status} in answer to a request for an object"))),
        }
    }

    /// Begins to follow its events: after `since`, or from the beginning.
    pub(crate) async fn events(&self, since: Option<&Cursor>) -> Result<Incoming, OriginError> {
        let route = Route::Events;
        let path = since.map_or_else(|| route.to_string(), |cursor| format!("{route}?since={cursor}"));
        let response = self.send(&self.clients().events, route.label(), &path, HeaderMap::new()).await?;
        match response.status() {
            StatusCode::OK => Ok(response.into_body()),
            StatusCode::NOT_FOUND => Err(OriginError::NotFound),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(self.refused(response).await),
            status => Err(self.bad_answer(&format!("status {status} in answer to a request for events"))),
        }
    }

    /// Whether it answers at all, whatever it says.
    pub(super) async fn probe(&self) {
        // The outcome is recorded where every request's is.
        let _ = self.send(&self.clients().requests, "probe", "/v1/services", HeaderMap::new()).await;
    }

    /// One request; what is no success becomes an error.
    pub(super) async fn get(
        &self,
        kind: &'static str,
        path: &str,
        headers: HeaderMap,
    ) -> Result<Response<Incoming>, OriginError> {
        let was_up = self.is_up();
        let client = self.clients().requests;
        let response = match self.send(&client, kind, path, headers.clone()).await {
            // A connection that was kept may have been dead for a while: a new one gets one chance at once.
            Err(OriginError::Unreachable { .. }) if was_up => self.send(&client, kind, path, headers).await?,
            sent => sent?,
        };
        match response.status() {
            StatusCode::NOT_FOUND => Err(OriginError::NotFound),
            StatusCode::MISDIRECTED_REQUEST => Err(OriginError::Misdirected(self.name().to_owned())),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(self.refused(response).await),
            _ => Ok(response),
        }
    }

    async fn send(
        &self,
        client: &Http2Client,
        kind: &'static str,
        path: &str,
        headers: HeaderMap,
    ) -> Result<Response<Incoming>, OriginError> {
        let patience = Patience::with(kind);
        if !self.breaker().admit(self.clock.now()) {
            self.metrics.answered(kind, "circuit_open");
            let reason = why_before(self.name(), self.last_error().as_deref());
            return Err(self.unreachable(format!("{reason}; it is left alone for a moment")));
        }
        let mut request = Request::builder()
            .uri(format!("https://{}{path}", self.authority))
            .body(Empty::new())
            .expect("an authority that was checked and a path of the protocol");
        *request.headers_mut() = headers;
        let wait = patience.wait();
        let answered = match tokio::time::timeout(wait, client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.unreachable(innermost(&error))),
            Err(_) => Err(OriginError::TimedOut { origin: self.name().to_owned(), after: wait }),
        };
        match &answered {
            Ok(response) => {
                let refusal = refusal(response.status());
                self.metrics.answered(kind, response.status().as_str());
                self.reached.fetch_or(refusal.is_none(), Ordering::Relaxed);
                self.came_of_it(refusal.map(|why| format!("origin {} {why}", self.authority)));
            }
            Err(error) => {
                self.metrics.answered(kind, error.label());
                if patience != Patience::AtHand && matches!(error, OriginError::TimedOut { .. }) {
                    self.breaker().slow();
                } else {
                    self.came_of_it(Some(error.to_string()));
                }
            }
        }
        answered
    }

    /// Tells the breaker what became of a question.
    fn came_of_it(&self, error: Option<String>) {
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
            None if before != Circuit::Closed => tracing::info!(origin = self.name(), "an origin is back"),
            _ => {}
        }
        self.metrics.up(self.name(), self.is_up());
        if let Ok(mut last) = self.last_error.lock() {
            *last = error;
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        // Nothing that can panic runs while it is held.
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
        let said: String = document.detail.chars().filter(|c| !c.is_control()).take(MAX_DETAIL_CHARS).collect();
        let detail = if said.is_empty() { format!("The origin answered {status} without a reason.") } else { said };
        OriginError::Refused { status: status.as_u16(), detail, retry_after }
    }
}

/// What was the matter with an origin the last time, to be said behind "origin NAME cannot be reached: ".
fn why_before(name: &str, last_error: Option<&str>) -> String {
    let last = last_error.unwrap_or("did not answer before");
    let last = last.strip_prefix("origin ").and_then(|last| last.strip_prefix(name)).unwrap_or(last).trim_start();
    last.strip_prefix("cannot be reached: ").unwrap_or(last).to_owned()
}

/// What an answer says that is none: it goes for every question of this edge, whatever was asked for.
fn refusal(status: StatusCode) -> Option<String> {
    let is_refusal = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    is_refusal.then(|| format!("answers {status}: it does not take the client certificate of this edge"))
}

/// The deepest cause of an error: `connection refused` rather than `client error (Connect)`.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    plain_words(cause).map_or_else(|| cause.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_an_origin_is_left_alone_is_said_once() {
        for (last, said) in [
            (Some("origin o:1 cannot be reached: Connection refused"), "Connection refused"),
            (Some("origin o:1 answers 401"), "answers 401"),
            (None, "did not answer before"),
        ] {
            assert_eq!(why_before("o:1", last), said);
        }
    }
}
