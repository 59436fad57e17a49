//! A small edge: serves crafted tarballs over TCP and UDP of one port, counts, and fails on demand.

mod body;
mod own;
mod script;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::StreamBody;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use weir_protocol::agent_event::{AgentEvent, AgentEventKind};
use weir_protocol::batch_poll::{BatchPoll, BatchRow, RowState};
use weir_protocol::digest::{Sha256, TarballDigest};
use weir_protocol::envelope::{Envelope, PUBLICATION_TYPE};
use weir_protocol::freshness::{HeartbeatAnswer, HeartbeatRequest, MAX_REQUEST_BYTES, SignedFreshness};
use weir_protocol::labels::Labels;
use weir_protocol::manifest::Manifest;
use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::observed::{AgentObserved, MAX_MESSAGE_BYTES, Row};
use weir_protocol::problem::Problem;
use weir_protocol::query;
use weir_protocol::route::Route;
use weir_protocol::token::SigningKey;
use weir_runtime::serve::{self, Body, BoxError, Handler, HttpMetrics, Peer, QuicOptions, RequestBody};
use weir_runtime::shutdown::Drain;
use weir_runtime::tls::{ClientAuth, server_config};

/// What goes wrong with one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One bit of the tarball is another one, on GET.
    FlipBit,
    /// The coded body ends early, and says that this is its end, on GET.
    Truncate,
    /// The body ends early with an error, on GET.
    BreakOff,
    /// Half a body, and then nothing, on GET.
    Stall,
    /// Half a body, and then a KiB each second, on GET.
    Trickle,
    /// A body that never ends, on GET.
    Endless,
    /// The requested part of a body has one wrong bit, on GET.
    WrongPart,
    /// Another part of a body than the requested one, on GET.
    OtherPart,
    /// Another digest than the tarball's, on GET.
    WrongDigest,
    /// No digest at all.
    NoDigest,
    /// A status, with `Retry-After`.
    Status(u16, Option<u64>),
    /// A status, with a problem that has this detail.
    Problem(u16, String),
    /// The head of the answer comes this late, on GET.
    Late(Duration),
    /// One of the others, while descriptors are right.
    InTarball(Box<Fault>),
}

/// What goes wrong with frames, while whole bodies are right.
#[derive(Debug, Clone)]
pub(crate) enum FramesFault {
    /// These bytes in place of the manifest of what is published.
    Manifest(Vec<u8>),
    /// What goes wrong with the manifest of what is published.
    InManifest(Fault),
    /// What goes wrong with each range.
    InRange(Fault),
}

impl Fault {
    fn is_for(&self, method: &Method) -> bool {
        matches!(self, Fault::NoDigest | Fault::Status(..) | Fault::Problem(..)) || method == Method::GET
    }
}

#[derive(Debug, Clone)]
struct Published {
    tar: Bytes,
    digest: TarballDigest,
    generation: u64,
    /// What the descriptor has.
    envelope: Option<Envelope>,
    /// The version of a chart: its revision is no commit.
    version: Option<&'static str>,
    /// The version that is staged for other agents than the one under test.
    staged: Option<Value>,
    /// The descriptor, if it is of another version.
    described: Option<Value>,
}

impl Published {
    fn commit(&self) -> Option<String> {
        self.version.is_none().then(|| commit(self.generation))
    }

    fn revision_id(&self) -> String {
        match self.version {
            Some(version) => format!("helm:{version}+sha256:{}", "d".repeat(64)),
            None => format!("sha1:{}", commit(self.generation)),
        }
    }
}

/// A request that was answered.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
}

#[derive(Default)]
struct State {
    published: HashMap<ServiceName, Published>,
    /// The versions that can be had by their digests.
    retained: HashMap<TarballDigest, Published>,
    /// Bodies are encoded in another way than by other edges.
    recoded: bool,
    /// The bytes of tar in each frame of a body, which then has a manifest.
    frame_bytes: Option<usize>,
    frames_fault: Option<FramesFault>,
    /// What is sent to an agent that has this dictionary.
    delta: Option<(Sha256, Bytes)>,
    /// For the next answers they are for, one each.
    faults: VecDeque<Fault>,
    /// For every answer.
    always: Option<Fault>,
    /// For every answer about a service.
    by_service: HashMap<ServiceName, Fault>,
    /// The statement of each service, whatever is published.
    statements: BTreeMap<ServiceName, Envelope>,
    staged_statements: BTreeMap<ServiceName, Envelope>,
    seen: Vec<Seen>,
    /// What agents ask about themselves; `None`: an edge that does not know who asks.
    own: Option<Own>,
}

/// What an edge says to an agent about itself.
#[derive(Default)]
struct Own {
    assigned: Vec<ServiceName>,
    /// Answers with this status.
    fails: Option<u16>,
    /// The status and query of each answer.
    polls: Vec<(u16, String)>,
    streams: Vec<mpsc::UnboundedSender<Bytes>>,
    /// The version of HTTP of each stream that was opened.
    opened: Vec<Version>,
    /// What agents say that they run.
    observed: Vec<AgentObserved>,
    /// The answers to the next of these messages; then `204`.
    observed_answers: VecDeque<u16>,
    /// The age of batch polls in seconds, if they say one.
    age: Option<u64>,
    labels: Labels,
    /// The name of this run of the edge; edges of before have none.
    instance: Option<&'static str>,
}

#[derive(Clone, Default)]
pub(crate) struct Answers(Arc<Mutex<State>>);

/// An edge that runs.
pub(crate) struct TestEdge {
    pub(crate) address: SocketAddr,
    pub(crate) answers: Answers,
    drain: Drain,
}

/// The commit under which generation `n` is published.
pub(crate) fn commit(generation: u64) -> String {
    format!("{generation:040x}")
}

impl TestEdge {
    pub(crate) async fn start(certificates: &Path) -> Self {
        Self::start_with(certificates, Answers::default(), None).await
    }

    /// An edge at a given port, with what another one had published.
    pub(crate) async fn start_with(certificates: &Path, answers: Answers, port: Option<u16>) -> Self {
        let tls = server_config(&certificates.join("edge.pem"), &certificates.join("edge.key"), ClientAuth::None)
            .expect("the certificates were just written");
        let drain = Drain::new();
        let metrics = HttpMetrics::register(&Registry::new()).expect("a new registry");
        for _ in 0..20 {
            // One that comes back finds its port free: those that the system gives by itself begin at 32768.
            let port = port.unwrap_or_else(|| fastrand::u16(20_000..32_000));
            let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await else { continue };
            let address = listener.local_addr().expect("it is bound");
            // The same number may be taken for UDP.
            let (tls, options) = (tls.clone(), QuicOptions::default());
            let quic = serve::quic(address, tls.clone(), &options, answers.clone(), metrics.listener("quic"), &drain);
            if quic.is_ok() {
                serve::tcp(listener, Some(tls), answers.clone(), metrics.listener("tcp"), &drain);
                return Self { address, answers, drain };
            }
        }
        panic!("no port is free for TCP and UDP");
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Stops as a crash would.
    pub(crate) async fn cut(self) -> Answers {
        self.drain.cut().await;
        self.answers
    }
}

impl Answers {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with it")
    }

    fn answer(&self, request: &Request<RequestBody>) -> (Response<Body>, Option<Duration>) {
        let (response, fault) = self.answer_with_fault(request);
        (response, if let Some(Fault::Late(late)) = fault { Some(late) } else { None })
    }

    fn answer_with_fault(&self, request: &Request<RequestBody>) -> (Response<Body>, Option<Fault>) {
        let mut state = self.state();
        let (headers, path) = (request.headers().clone(), request.uri().path().to_owned());
        let route = Route::parse(&path);
        let of_service = route.as_ref().ok().and_then(Route::service).and_then(|service| state.by_service.get(service));
        let always = of_service.or(state.always.as_ref()).cloned();
        state.seen.push(Seen { method: request.method().clone(), path, version: request.version(), headers });
        let fault = match &always {
            Some(fault) => Some(fault.clone()).filter(|fault| fault.is_for(request.method())),
            None if state.faults.front().is_some_and(|fault| fault.is_for(request.method())) => {
                state.faults.pop_front()
            }
            None => None,
        };
        (respond(&state, request, fault.as_ref()), fault)
    }
}

fn respond(state: &State, request: &Request<RequestBody>, fault: Option<&Fault>) -> Response<Body> {
    let empty = |status| {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
        response
    };
    let of_range = match &state.frames_fault {
        Some(FramesFault::InRange(fault)) if request.headers().contains_key("range") => Some(fault),
        _ => None,
    };
    let fault = of_range.or(fault);
    match fault {
        Some(Fault::Status(status, retry_after)) => {
            let mut response = empty(*status);
            if let Some(seconds) = retry_after {
                response.headers_mut().insert("retry-after", (*seconds).into());
            }
            return response;
        }
        Some(Fault::Problem(status, detail)) => {
            let status = StatusCode::from_u16(*status).expect("a status");
            return Problem::new(status, "test", "A problem of a test", detail.as_str()).into_response();
        }
        _ => {}
    }
    if let Ok(Route::TarballFrames(service, digest)) = Route::parse(request.uri().path()) {
        let known = state.retained.get(&digest).filter(|_| state.frame_bytes.is_some());
        let is_current = state.published.get(&service).is_some_and(|published| published.digest == digest);
        let fault = state.frames_fault.as_ref().filter(|_| is_current);
        return known.map_or_else(|| empty(404), |published| body::manifest_response(&published.tar, state, fault));
    }
    let (published, tells) = match Route::parse(request.uri().path()) {
        Ok(Route::Tarball(service)) => (state.published.get(&service), None),
        Ok(Route::TarballVersion(_, digest)) => (state.retained.get(&digest), None),
        Ok(Route::Service(service)) => (state.published.get(&service), Some(service)),
        _ => (None, None),
    };
    match (published, tells) {
        (None, _) => empty(404),
        (Some(published), None) => {
            let fault = if let Some(Fault::InTarball(fault)) = fault { Some(&**fault) } else { fault };
            let mut response = body::tarball(request, published, state, fault);
            if request.uri().path().contains("/tarballs/") {
                for name in ["weir-generation", "weir-commit", "weir-revision", "weir-version"] {
                    response.headers_mut().remove(name);
                }
            }
            response
        }
        (Some(published), Some(service)) => descriptor(&service, published, fault),
    }
}

fn publication(service: &ServiceName, published: &Published) -> Value {
    let mut publication = json!({
        "service": service, "repository": "shop", "generation": published.generation, "digest": published.digest,
        "sha256": "01".repeat(32), "size": published.tar.len(), "revision_id": published.revision_id(),
        "selector": null, "published_at": "2026-11-20T09:30:00Z", "format": 1, "omitted": [],
    });
    if let Some(commit) = published.commit() {
        publication["commit"] = commit.into();
    }
    if let Some(version) = published.version {
        publication["version"] = version.into();
    }
    publication
}

fn document(service: &ServiceName, published: &Published) -> Value {
    json!({
        "seen": { "revision_id": "sha1:aa", "upstream_unreachable_since": null },
        "publication": publication(service, published), "envelope": published.envelope,
        "ref": "main", "revision": 1, "representations": [], "staged": published.staged,
    })
}

fn descriptor(service: &ServiceName, published: &Published, fault: Option<&Fault>) -> Response<Body> {
    let document = published.described.clone().unwrap_or_else(|| document(service, published));
    let json = document.to_string().into_bytes();
    Response::new(match fault {
        Some(Fault::Truncate) => body::in_parts(&json[..json.len() / 2], body::Tail::End),
        Some(Fault::BreakOff) => body::in_parts(&json[..json.len() / 2], body::Tail::Error),
        Some(Fault::Stall) => body::in_parts(&json[..json.len() / 2], body::Tail::Nothing),
        Some(Fault::Endless) => body::in_parts(b"{", body::Tail::Endless),
        _ => Body::from(json),
    })
}

impl Handler for Answers {
    async fn handle(&self, request: Request<RequestBody>, _: Arc<Peer>) -> Response<Body> {
        if Route::parse(request.uri().path()) == Ok(Route::AgentHeartbeats) {
            return self.heartbeats(request).await;
        }
        match Route::parse(request.uri().path()) {
            Ok(Route::AgentServices) => return self.of_instance(self.batch_poll(&request)),
            Ok(Route::AgentEvents) => return self.of_instance(self.events(request.version())),
            Ok(Route::AgentObserved) => {
                let response = self.observe(request).await;
                return self.of_instance(response);
            }
            _ => {}
        }
        let (response, late) = self.answer(&request);
        if let Some(late) = late {
            tokio::time::sleep(late).await;
        }
        response
    }
}

fn status(status: u16) -> Response<Body> {
    Response::builder().status(status).body(Body::Empty).expect("a response")
}

/// How long the tests wait for what should happen at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
