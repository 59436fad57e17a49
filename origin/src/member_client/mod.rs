//! Requests to other members of the cluster: HTTP/2 over mutual TLS, at the URL that each advertises.
//!
//! An origin connects with the certificate of its own listener and trusts the authority that its clients' certificates are
//! verified by, so `[tls]` serves both directions.

mod error;
mod forwarded;
mod metrics;
mod route;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus::Registry;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use weir_model::ServerClocks;
use weir_protocol::freshness::{HeartbeatAnswer, HeartbeatRequest, MAX_ANSWER_BYTES};
use weir_protocol::name::{ClusterId, RepositoryName};
use weir_runtime::http_client::{Http2Client, http2_client, read_body, root_cause};
use weir_runtime::serve::Body;
use weir_runtime::tls::{self, TlsError};

pub(crate) use self::error::MemberError;
use self::forwarded::AnswerBody;
pub(crate) use self::metrics::MemberMetrics;
pub(crate) use self::route::{CALLER, CALLER_ROLE, CLUSTER, Route, SECRET};
use crate::config::TlsConfig;
use crate::metrics::Metrics;

/// An operator for whom this origin speaks.
pub(crate) struct ForwardedCaller<'a> {
    pub(crate) name: &'a str,
    pub(crate) role: &'static str,
    /// What shows the member that this origin may do so.
    pub(crate) secret: Option<HeaderValue>,
}

/// How long a member may take to answer a message, connecting included.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the owner of a repository may take for the request of an operator. All that it does has a shorter deadline, and
/// a dead connection is closed after 10 s.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(150);

/// The most requests of operators that are passed on at a time.
const MAX_FORWARDED: usize = 64;

/// The most webhooks that are passed on at a time. Anyone can send one, so they take no place of an operator.
const MAX_FORWARDED_WEBHOOKS: usize = 64;

/// Where edges and members ask for freshness statements.
const HEARTBEATS: &str = "/v1/heartbeats";

/// The longest answer to a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// Sends requests to members.
#[derive(Debug)]
pub(crate) struct MemberClient {
    client: RwLock<Http2Client<Body>>,
    /// The cluster, which each request names. `None`: the record of its identity is damaged.
    cluster: Option<HeaderValue>,
    forwarded: Arc<Semaphore>,
    forwarded_webhooks: Arc<Semaphore>,
    metrics: MemberMetrics,
    clocks: ServerClocks,
}

/// The answer to [`Route::Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Readiness {
    pub(crate) ready: bool,
}

impl MemberClient {
    /// # Errors
    /// A file cannot be read, or the metrics are registered already.
    pub(crate) fn new(
        tls: &TlsConfig,
        cluster: Option<&ClusterId>,
        registry: &Registry,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let bounds = &metrics.bounds;
        Ok(Self {
            client: RwLock::new(connector(tls)?),
            cluster: cluster.map(|id| HeaderValue::from_str(id.as_str())).transpose()?,
            forwarded: bounds.semaphore("forwarded_requests", MAX_FORWARDED),
            forwarded_webhooks: bounds.semaphore("forwarded_webhooks", MAX_FORWARDED_WEBHOOKS),
            metrics: MemberMetrics::register(registry)?,
            clocks: metrics.clocks.clone(),
        })
    }

    /// Uses the files as they are now for new requests.
    ///
    /// # Errors
    /// A file cannot be read. Nothing changes then.
    pub(crate) fn reload(&self, tls: &TlsConfig) -> Result<(), TlsError> {
        let client = connector(tls)?;
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
        Ok(())
    }

    /// Asks the member at `url` whether it is ready to own a repository.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) async fn is_ready(&self, url: &str, repository: &RepositoryName) -> Result<bool, MemberError> {
        let answer = self.message("ask", url, &Route::Ask(repository.clone())).await?;
        read::<Readiness>(answer).await.map(|answer| answer.ready)
    }

    /// Tells the member at `url` that a repository was released for it.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) async fn tell(&self, url: &str, repository: &RepositoryName) -> Result<(), MemberError> {
        self.message("tell", url, &Route::Tell(repository.clone())).await.map(drop)
    }

    /// Has the member at `url` read a repository again.
    ///
    /// # Errors
    /// It does not answer, or cannot read it.
    pub(crate) async fn changed(&self, url: &str, repository: &RepositoryName) -> Result<(), MemberError> {
        self.message("changed", url, &Route::Changed(repository.clone())).await.map(drop)
    }

    /// Has the member at `url` read the freezes and the plans again.
    ///
    /// # Errors
    /// It does not answer, cannot read them, or is of the release before.
    pub(crate) async fn lists_changed(&self, url: &str) -> Result<(), MemberError> {
        self.message("lists", url, &Route::Lists).await.map(drop)
    }

    /// What the member at `url` states of services that it owns.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) async fn statements(
        &self,
        url: &str,
        request: &HeartbeatRequest,
    ) -> Result<HeartbeatAnswer, MemberError> {
        let request = member_request(Method::POST, url, HEARTBEATS, Body::from(request.to_json()))?;
        let answer = self.send("heartbeats", request, MESSAGE_TIMEOUT).await?;
        if answer.status() != StatusCode::OK {
            return Err(MemberError::BadAnswer(format!("status {}", answer.status())));
        }
        let body = read_body(answer.into_body(), MAX_ANSWER_BYTES, MESSAGE_TIMEOUT).await;
        let body = body.map_err(|error| MemberError::Unreachable(error.to_string()))?;
        HeartbeatAnswer::parse(&body).map_err(|error| MemberError::BadAnswer(error.to_string()))
    }

    /// Passes a request on to the member at `url`, and returns its answer as it is. `caller`: the operator; `None`
    /// for a webhook.
    ///
    /// # Errors
    /// There is no answer.
    pub(crate) async fn forward(
        &self,
        url: &str,
        caller: Option<ForwardedCaller<'_>>,
        request: Request<Body>,
    ) -> Result<Response<Body>, MemberError> {
        let (kind, permits) = match caller {
            Some(_) => ("operator", &self.forwarded),
            None => ("webhook", &self.forwarded_webhooks),
        };
        let permit = permits.clone().try_acquire_owned().map_err(|_| {
            self.metrics.answered(kind, MemberError::Overloaded.into_str());
            MemberError::Overloaded
        })?;
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut forwarded = member_request(head.method, url, Route::Forwarded(path), body)?;
        *forwarded.headers_mut() = forwarded::headers(head.headers);
        if let Some(ForwardedCaller { name, role, secret }) = caller {
            let caller = HeaderValue::from_str(name).expect("the name of an operator is visible ASCII");
            forwarded.headers_mut().insert(CALLER, caller);
            forwarded.headers_mut().insert(CALLER_ROLE, HeaderValue::from_static(role));
            forwarded.headers_mut().extend(secret.map(|secret| (SECRET, secret)));
        }
        let (head, body) = self.send(kind, forwarded, FORWARD_TIMEOUT).await?.into_parts();
        let mut answer = Response::new(Body::stream(AnswerBody { body, _permit: permit }));
        (*answer.status_mut(), *answer.headers_mut()) = (head.status, head.headers);
        Ok(answer)
    }

    async fn message(
        &self,
        kind: &'static str,
        url: &str,
        route: &Route<'_>,
    ) -> Result<Response<Incoming>, MemberError> {
        let request = member_request(Method::POST, url, route, Body::Empty)?;
        let answer = self.send(kind, request, MESSAGE_TIMEOUT).await?;
        match answer.status() {
            StatusCode::OK | StatusCode::NO_CONTENT => Ok(answer),
            status => Err(MemberError::BadAnswer(format!("status {status}"))),
        }
    }

    async fn send(
        &self,
        kind: &'static str,
        mut request: Request<Body>,
        timeout: Duration,
    ) -> Result<Response<Incoming>, MemberError> {
        request.headers_mut().extend(self.cluster.clone().map(|id| (CLUSTER, id)));
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner).clone();
        let member = request.uri().authority().map_or_else(String::new, ToString::to_string);
        let answered = match tokio::time::timeout(timeout, client.request(request)).await {
            Ok(answered) => answered.map_err(|error| MemberError::Unreachable(root_cause(&error))),
            Err(_) => Err(MemberError::TimedOut(timeout)),
        };
        match &answered {
            Ok(answer) => {
                self.clocks.observe(&member, answer.headers());
                self.metrics.answered(kind, answer.status().as_str());
            }
            Err(error) => self.metrics.answered(kind, error.into_str()),
        }
        answered
    }
}

async fn read<T: DeserializeOwned>(answer: Response<Incoming>) -> Result<T, MemberError> {
    let body = read_body(answer.into_body(), MAX_MESSAGE_BYTES, MESSAGE_TIMEOUT).await;
    let body = body.map_err(|error| MemberError::Unreachable(error.to_string()))?;
    serde_json::from_slice(&body).map_err(|error| MemberError::BadAnswer(error.to_string()))
}

fn connector(tls: &TlsConfig) -> Result<Http2Client<Body>, TlsError> {
    let TlsConfig { certificate, key, client_ca } = tls;
    tls::client_config(client_ca, Some((certificate, key))).map(http2_client)
}

/// `url` has no path, but may end with a slash.
fn member_request(
    method: Method,
    url: &str,
    path: impl fmt::Display,
    body: Body,
) -> Result<Request<Body>, MemberError> {
    let uri = format!("{}{path}", url.trim_end_matches('/'));
    let request = Request::builder().method(method).uri(uri).body(body);
    request.map_err(|error| MemberError::Unreachable(format!("the URL {url} that it advertises is wrong: {error}")))
}
