//! A small edge: serves crafted tarballs over TCP and UDP of one port, counts, and fails on demand.

mod body;

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
    /// Publishes under the next generation, which is returned with the digest.
    pub(crate) fn publish(&self, service: &ServiceName, tar: Vec<u8>) -> (TarballDigest, u64) {
        let next = self.state().published.get(service).map_or(1, |published| published.generation + 1);
        (self.publish_at(service, tar, next), next)
    }

    pub(crate) fn publish_at(&self, service: &ServiceName, tar: Vec<u8>, generation: u64) -> TarballDigest {
        let digest = TarballDigest::of(&tar);
        let published = Published { tar: tar.into(), digest, generation, envelope: None, version: None };
        let mut state = self.state();
        state.retained.insert(digest, published.clone());
        state.published.insert(service.clone(), published);
        digest
    }

    /// What is published is this version of a chart.
    pub(crate) fn name_version(&self, service: &ServiceName, version: &'static str) {
        self.state().published.get_mut(service).expect("it is published").version = Some(version);
    }

    /// Nothing can be had by its digest any more.
    pub(crate) fn drop_retained(&self) {
        self.state().retained.clear();
    }

    /// Signs what is published as its origin would.
    pub(crate) fn sign(&self, service: &ServiceName, keys: &[SigningKey]) {
        let publication = self.publication(service);
        self.sign_as(service, &publication, keys);
    }

    /// The envelope of the descriptor is this publication, whatever is published.
    pub(crate) fn sign_as(&self, service: &ServiceName, publication: &Value, keys: &[SigningKey]) {
        let envelope = Envelope::sign(PUBLICATION_TYPE, publication.to_string().as_bytes(), keys);
        self.state().published.get_mut(service).expect("it is published").envelope = Some(envelope);
    }

    /// The publication that is published.
    pub(crate) fn publication(&self, service: &ServiceName) -> Value {
        publication(service, &self.state().published[service])
    }

    /// The headers and the descriptor claim this generation; the envelope stays.
    pub(crate) fn claim(&self, service: &ServiceName, generation: u64) {
        self.state().published.get_mut(service).expect("it is published").generation = generation;
    }

    /// The bytes are others; what is said of them stays.
    pub(crate) fn swap_bytes(&self, service: &ServiceName, tar: Vec<u8>) {
        self.state().published.get_mut(service).expect("it is published").tar = tar.into();
    }

    /// Answers with this freshness statement from now on.
    pub(crate) fn state_freshness(&self, service: &ServiceName, envelope: Envelope) {
        self.state().statements.insert(service.clone(), envelope);
    }

    /// Sends this body as a delta to agents that have the dictionary.
    pub(crate) fn send_delta(&self, dictionary: Sha256, body: Vec<u8>) {
        self.state().delta = Some((dictionary, body.into()));
    }

    /// Bodies are other ones than those of other edges from now on, of the same tarballs.
    pub(crate) fn recode(&self) {
        self.state().recoded = true;
    }

    /// Bodies are frames of so many bytes of tar from now on, which manifests name.
    pub(crate) fn cut_frames(&self, tar_bytes: usize) {
        self.state().frame_bytes = Some(tar_bytes);
    }

    /// Frames and manifests are wrong from now on.
    pub(crate) fn fail_frames(&self, fault: impl Into<Option<FramesFault>>) {
        self.state().frames_fault = fault.into();
    }

    /// The manifest of what is published.
    pub(crate) fn manifest(&self, service: &ServiceName) -> Manifest {
        let state = self.state();
        body::manifest(&state.published[service].tar, &state)
    }

    /// The encoded body of what is published.
    pub(crate) fn encoded(&self, service: &ServiceName) -> Vec<u8> {
        let state = self.state();
        body::encoded(&state.published[service].tar, &state)
    }

    /// The next answers are wrong, one after the other.
    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.extend(faults);
    }

    /// All answers are wrong.
    pub(crate) fn fail_always(&self, fault: impl Into<Option<Fault>>) {
        self.state().always = fault.into();
    }

    /// All answers about this service are wrong.
    pub(crate) fn fail_service(&self, service: &ServiceName, fault: Fault) {
        self.state().by_service.insert(service.clone(), fault);
    }

    pub(crate) fn count(&self, method: &Method, version: Version) -> usize {
        self.state().seen.iter().filter(|seen| seen.method == method && seen.version == version).count()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    pub(crate) fn forget(&self) {
        self.state().seen.clear();
    }

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

fn descriptor(service: &ServiceName, published: &Published, fault: Option<&Fault>) -> Response<Body> {
    let document = json!({
        "seen": { "revision_id": "sha1:aa", "upstream_unreachable_since": null },
        "publication": publication(service, published), "envelope": published.envelope,
        "ref": "main", "revision": 1, "representations": [],
    });
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

impl Answers {
    /// Knows the agent from now on, and assigns these services to it.
    pub(crate) fn assign(&self, services: &[&ServiceName]) {
        let assigned = services.iter().map(|service| (*service).clone()).collect();
        self.state().own.get_or_insert_default().assigned = assigned;
    }

    /// Batch polls have this status from now on.
    pub(crate) fn fail_batch_polls(&self, status: impl Into<Option<u16>>) {
        self.state().own.get_or_insert_default().fails = status.into();
    }

    /// Batch polls have this age from now on.
    pub(crate) fn age(&self, seconds: u64) {
        self.state().own.get_or_insert_default().age = Some(seconds);
    }

    /// The status and query of each batch poll.
    pub(crate) fn batch_polls(&self) -> Vec<(u16, String)> {
        self.state().own.as_ref().map_or_else(Vec::new, |own| own.polls.clone())
    }

    /// The messages about what agents run, of which some were not accepted.
    pub(crate) fn observed(&self) -> Vec<AgentObserved> {
        self.state().own.as_ref().map_or_else(Vec::new, |own| own.observed.clone())
    }

    /// The last row of a service in these messages.
    pub(crate) fn observed_row(&self, service: &ServiceName) -> Option<Row> {
        let state = self.state();
        let messages = state.own.iter().flat_map(|own| own.observed.iter().rev());
        messages.flat_map(|message| &message.rows).find(|row| row.service == *service).cloned()
    }

    /// The number of these messages.
    pub(crate) fn observed_count(&self) -> usize {
        self.state().own.as_ref().map_or(0, |own| own.observed.len())
    }

    /// The next of these messages gets this answer.
    pub(crate) fn answer_observed(&self, status: u16) {
        self.state().own.get_or_insert_default().observed_answers.push_back(status);
    }

    /// Answers as another run of the edge from now on.
    pub(crate) fn begin_instance(&self, instance: &'static str) {
        self.state().own.get_or_insert_default().instance = Some(instance);
    }

    /// The event streams that are open.
    pub(crate) fn streams(&self) -> usize {
        self.state().own.as_ref().map_or(0, |own| own.streams.iter().filter(|stream| !stream.is_closed()).count())
    }

    /// The version of HTTP of each event stream since the start.
    pub(crate) fn opened_streams(&self) -> Vec<Version> {
        self.state().own.as_ref().map_or_else(Vec::new, |own| own.opened.clone())
    }

    /// Ends all event streams.
    pub(crate) fn end_streams(&self) {
        self.state().own.iter_mut().for_each(|own| own.streams.clear());
    }

    /// Sends an event to all agents.
    pub(crate) fn send(&self, kind: AgentEventKind) {
        let line = AgentEvent { cursor: "a1".parse().expect("a cursor"), kind }.line();
        let state = self.state();
        state.own.iter().flat_map(|own| &own.streams).for_each(|stream| drop(stream.send(line.clone())));
    }

    /// The row of a service.
    pub(crate) fn row(&self, service: &ServiceName) -> BatchRow {
        row(&self.state(), service)
    }

    fn of_instance(&self, mut response: Response<Body>) -> Response<Body> {
        if let Some(instance) = self.state().own.as_ref().and_then(|own| own.instance) {
            response.headers_mut().insert("weir-edge-instance", http::HeaderValue::from_static(instance));
        }
        response
    }

    fn batch_poll(&self, request: &Request<RequestBody>) -> Response<Body> {
        let mut state = self.state();
        let Some(own) = &state.own else { return status(404) };
        let query = request.uri().query().unwrap_or_default().to_owned();
        let patterns = query::pairs(&query).find(|(key, _)| *key == "services").map(|(_, value)| value);
        let services: Vec<ServiceName> = match patterns {
            None => own.assigned.clone(),
            Some(patterns) => {
                let patterns: Vec<NameGlob> = patterns.split(',').map(|glob| glob.parse().expect("a glob")).collect();
                let is_known = |service: &&ServiceName| patterns.iter().any(|glob| glob.matches(service.as_str()));
                let known = state.published.keys().filter(is_known).cloned();
                known.chain(patterns.iter().filter_map(|glob| glob.as_str().parse().ok())).collect()
            }
        };
        let rows = BatchPoll::new(services.iter().map(|service| row(&state, service)).collect()).expect("a few");
        let (body, fails, age) = (rows.to_json(), own.fails, own.age);
        let tag = BatchPoll::etag(&body);
        let is_known = request.headers().get("if-none-match").is_some_and(|known| *known == tag);
        let code = fails.unwrap_or(if is_known { 304 } else { 200 });
        state.own.as_mut().expect("it is there").polls.push((code, query));
        let body = if code == 200 { Body::from(body) } else { Body::Empty };
        let mut response = Response::builder().status(code).header("etag", tag);
        if let Some(age) = age {
            response = response.header("age", age);
        }
        response.body(body).expect("a response")
    }

    fn events(&self, version: Version) -> Response<Body> {
        let Some(own) = &mut self.state().own else { return status(404) };
        let (sender, received) = mpsc::unbounded_channel();
        let cursor = "a1".parse().expect("a cursor");
        sender.send(AgentEvent { cursor, kind: AgentEventKind::Heartbeat }.line()).expect("it is open");
        own.streams.push(sender);
        own.opened.push(version);
        let next = |mut received: mpsc::UnboundedReceiver<Bytes>| async {
            let line = received.recv().await?;
            Some((Ok::<_, BoxError>(Frame::data(line)), received))
        };
        Response::new(Body::stream(StreamBody::new(stream::unfold(received, next).boxed())))
    }

    async fn observe(&self, request: Request<RequestBody>) -> Response<Body> {
        let body = request.into_body().read(MAX_MESSAGE_BYTES).await.expect("a body within the limit");
        let Some(own) = &mut self.state().own else { return status(404) };
        own.observed.push(AgentObserved::parse(&body).expect("a message"));
        let code = own.observed_answers.pop_front().unwrap_or(204);
        let retry_after = (code == 429).then_some(("retry-after", "1"));
        let mut response = status(code);
        response.headers_mut().extend(
            retry_after
                .map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))),
        );
        response
    }
}

fn row(state: &State, service: &ServiceName) -> BatchRow {
    let absent = BatchRow {
        service: service.clone(),
        state: RowState::NotPublished,
        digest: None,
        generation: None,
        revision_id: None,
        etag: None,
    };
    let Some(published) = state.published.get(service) else { return absent };
    BatchRow {
        state: RowState::Current,
        digest: Some(published.digest),
        generation: Some(published.generation),
        revision_id: Some(published.revision_id().parse().expect("a revision")),
        etag: Some(format!("\"{}\"", published.generation)),
        ..absent
    }
}

impl Answers {
    async fn heartbeats(&self, request: Request<RequestBody>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.read(MAX_REQUEST_BYTES).await.expect("a small body");
        let wanted = HeartbeatRequest::parse(&body).expect("a request for statements").services;
        let mut state = self.state();
        state.seen.push(Seen {
            method: head.method,
            path: head.uri.path().to_owned(),
            version: head.version,
            headers: head.headers,
        });
        let of = |service| Some((state.statements.get(&service)?.clone(), service));
        let signed = wanted.into_iter().filter_map(of);
        let services = signed.map(|(envelope, service)| SignedFreshness { service, envelope }).collect();
        Response::new(Body::from(HeartbeatAnswer { services }.to_json()))
    }
}

/// How long the tests wait for what should happen at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
