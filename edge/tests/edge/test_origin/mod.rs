//! An origin that serves real descriptors and objects over mutual TLS, counts its requests, and fails on demand.

mod events;
mod object;
mod tarball;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use prometheus::Registry;
use serde_json::value::RawValue;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use weir_protocol::access_list::AccessList;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::envelope::Envelope;
use weir_protocol::event::EventKind;
use weir_protocol::freshness::{HeartbeatAnswer, HeartbeatRequest, MAX_REQUEST_BYTES, SignedFreshness};
use weir_protocol::members::{self, Member, MemberState, Members};
use weir_protocol::name::ServiceName;
use weir_protocol::observed::{EDGE_PATH, EdgeObserved, MAX_MESSAGE_BYTES, NAME_TWICE};
use weir_protocol::problem::Problem;
use weir_protocol::request_id::REQUEST_ID;
use weir_protocol::route::Route;
use weir_protocol::versions::{ListedVersion, Versions};
use weir_runtime::identity::Role;
use weir_runtime::serve::{self, Body, Handler, HttpMetrics, Peer, RequestBody};
use weir_runtime::shutdown::Drain;
use weir_runtime::tls::{self, ClientAuth};

use self::events::Events;

pub(crate) use self::object::Fault;
pub(crate) use self::tarball::{FRAME, Tarball};

/// The repository of all services.
const REPOSITORY: &str = "shop";

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct OriginRequest {
    pub(crate) route: String,
    /// Which object.
    pub(crate) object: Option<ObjectDigest>,
    pub(crate) no_cache: bool,
    pub(crate) query: Option<String>,
    pub(crate) request_id: Option<String>,
}

#[derive(Default)]
struct State {
    descriptors: HashMap<String, Bytes>,
    versions: HashMap<String, Bytes>,
    /// The lists of versions, the newest first.
    lists: HashMap<String, Vec<(Descriptor, bool)>>,
    objects: HashMap<ObjectDigest, Bytes>,
    /// Of access lists.
    shards: HashMap<ObjectDigest, Bytes>,
    /// By service.
    faults: VecDeque<Fault>,
    /// What goes wrong with the next answer with one object.
    object_faults: HashMap<ObjectDigest, Fault>,
    /// The answer to every request for a descriptor.
    problem: Option<Problem>,
    /// Requests for descriptors wait for it.
    gate: Option<Arc<Semaphore>>,
    requests: Vec<OriginRequest>,
    /// It takes nobody for an edge.
    refuses: bool,
    /// Services that another member owns: they are answered, and not announced.
    unowned: HashSet<String>,
    /// The freshness statements that it gives.
    statements: HashMap<ServiceName, Envelope>,
    /// The same of staged versions.
    staged_statements: HashMap<ServiceName, Envelope>,
    /// None: it is no member of a cluster.
    members: Option<Members>,
    /// What the edge says that agents run, as far as it was accepted. None: it is older.
    observed: Option<Vec<EdgeObserved>>,
    /// The paths of these messages.
    observed_paths: Vec<String>,
    /// The answers to the next of these messages; then `204`.
    observed_answers: VecDeque<u16>,
    /// None: there is no event stream.
    events: Option<Events>,
}

#[derive(Clone, Default)]
struct Api {
    state: Arc<Mutex<State>>,
}

pub(crate) struct TestOrigin {
    api: Api,
    pki: PathBuf,
    address: SocketAddr,
    drain: Drain,
}

impl TestOrigin {
    pub(crate) async fn start(pki: &Path) -> Self {
        let mut origin =
            Self { api: Api::default(), pki: pki.to_owned(), address: ([127, 0, 0, 1], 0).into(), drain: Drain::new() };
        // It goes away and comes back at the same port, which the system must give to nobody meanwhile: those that it
        // gives by itself begin at 32768.
        let listener = loop {
            origin.address.set_port(fastrand::u16(20_000..32_000));
            if let Ok(listener) = TcpListener::bind(origin.address).await {
                break listener;
            }
        };
        origin.listen(listener);
        origin
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Connections break, new ones are refused.
    pub(crate) async fn go_down(&self) {
        self.drain.cut().await;
    }

    pub(crate) async fn go_up(&mut self) {
        self.drain = Drain::new();
        self.listen(TcpListener::bind(self.address).await.unwrap());
    }

    fn listen(&self, listener: TcpListener) {
        let file = |name: &str| self.pki.join(name);
        let ca = file("ca.pem");
        let tls = tls::server_config(&file("origin.pem"), &file("origin.key"), ClientAuth::Required { ca: &ca });
        let metrics = HttpMetrics::register(&Registry::new()).unwrap().listener("test");
        serve::tcp(listener, Some(tls.unwrap()), self.api.clone(), metrics, &self.drain);
    }

    pub(crate) fn publish(&self, service: &str, generation: u64, revision: u64, tarball: &Tarball) -> Descriptor {
        self.put(service, tarball, tarball.descriptor(service, generation, revision))
    }

    /// Publishes a tarball with this descriptor.
    pub(crate) fn put(&self, service: &str, tarball: &Tarball, descriptor: Descriptor) -> Descriptor {
        let mut state = self.api.state.lock().unwrap();
        state.descriptors.insert(service.to_owned(), descriptor.bytes().clone());
        state.unowned.remove(service);
        state.versions.insert(format!("{service}/{}", tarball.digest()), descriptor.bytes().clone());
        state.objects.extend(tarball.objects());
        let list = state.lists.entry(service.to_owned()).or_default();
        list.retain(|(one, _)| one.publication().digest != tarball.digest());
        list.insert(0, (descriptor.clone(), true));
        descriptor
    }

    /// The service stepped back from this tarball.
    pub(crate) fn step_back_from(&self, service: &str, tarball: &Tarball) {
        let mut state = self.api.state.lock().unwrap();
        let versions = state.lists.get_mut(service).unwrap();
        versions
            .iter_mut()
            .filter(|(one, _)| one.publication().digest == tarball.digest())
            .for_each(|one| one.1 = false);
    }

    /// What another member published is in the store.
    pub(crate) fn store(&self, service: &str, generation: u64, revision: u64, tarball: &Tarball) {
        self.publish(service, generation, revision, tarball);
        self.api.state.lock().unwrap().unowned.insert(service.to_owned());
    }

    /// Names the members of its cluster from now on.
    pub(crate) fn list_members(&self, members: &[&TestOrigin]) {
        let member = |(number, origin): (usize, &&TestOrigin)| Member {
            name: format!("origin-{number}").parse().unwrap(),
            url: origin.url(),
            zone: None,
            state: MemberState::Active,
        };
        let members = members.iter().enumerate().map(member).collect();
        self.api.state.lock().unwrap().members = Some(Members { members });
    }

    /// Takes in what agents run from now on.
    pub(crate) fn observe(&self) {
        self.api.state.lock().unwrap().observed = Some(Vec::new());
    }

    /// The messages about what agents run that it accepted.
    pub(crate) fn observed(&self) -> Vec<EdgeObserved> {
        self.api.state.lock().unwrap().observed.clone().unwrap_or_default()
    }

    /// The paths of these messages.
    pub(crate) fn observed_paths(&self) -> Vec<String> {
        self.api.state.lock().unwrap().observed_paths.clone()
    }

    /// The next of these messages gets this answer.
    pub(crate) fn answer_observed(&self, status: u16) {
        self.api.state.lock().unwrap().observed_answers.push_back(status);
    }

    /// Whether it takes nobody for an edge from now on.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.api.state.lock().unwrap().refuses = refuses;
    }

    /// From now on there is an event stream.
    pub(crate) fn serve_events(&self) {
        self.api.state.lock().unwrap().events = Some(Events::default());
    }

    /// Tells those who follow, and those who come back.
    pub(crate) fn send_event(&self, kind: EventKind) {
        self.with_events(|events| {
            events.sent.push(kind.clone());
            events.send_line(kind);
        });
    }

    /// Sends an access list by the digests of its shards, which are served from now on if `serves`.
    pub(crate) fn send_shards(&self, list: &AccessList, serves: bool) {
        let sent = list.sharded_json();
        if serves {
            let digests = AccessList::parse(sent.get().as_bytes()).unwrap().lacking();
            let shards = digests.into_iter().map(|digest| (digest, list.fleet().shard_json(&digest).unwrap().into()));
            self.api.state.lock().unwrap().shards.extend(shards);
        }
        self.send_event(EventKind::Access(sent.get().to_owned().into()));
    }

    /// Publishes, and tells.
    pub(crate) fn push(&self, service: &str, generation: u64, revision: u64, tarball: &Tarball) {
        let descriptor = self.publish(service, generation, revision, tarball);
        self.send_event(EventKind::Descriptor(descriptor.bytes().clone()));
    }

    pub(crate) fn heartbeat(&self) {
        self.with_events(|events| events.send_line(EventKind::Heartbeat));
    }

    /// Says something that is no event.
    pub(crate) fn babble(&self, bytes: &'static [u8]) {
        self.with_events(|events| events.send(&Bytes::from_static(bytes)));
    }

    /// Cuts the streams that are open.
    pub(crate) fn cut_streams(&self) {
        self.with_events(Events::cut);
    }

    /// Nobody's cursor is known any more.
    pub(crate) fn forget_cursors(&self) {
        self.with_events(|events| events.epoch += 1);
    }

    fn with_events(&self, act: impl FnOnce(&mut Events)) {
        act(self.api.state.lock().unwrap().events.as_mut().unwrap());
    }

    /// Gives this freshness statement from now on.
    pub(crate) fn state_freshness(&self, service: &str, envelope: Envelope) {
        self.api.state.lock().unwrap().statements.insert(service.parse().unwrap(), envelope);
    }

    /// The same of its staged version.
    pub(crate) fn state_freshness_of_staged(&self, service: &str, envelope: Envelope) {
        self.api.state.lock().unwrap().staged_statements.insert(service.parse().unwrap(), envelope);
    }

    pub(crate) fn withdraw(&self, service: &str) {
        self.api.state.lock().unwrap().descriptors.remove(service);
    }

    /// An object of a tarball is gone: its one frame, or its manifest.
    pub(crate) fn forget_object(&self, tarball: &Tarball) {
        self.api.state.lock().unwrap().objects.remove(&tarball.named());
    }

    /// The next answers to requests for objects go wrong, one after the other.
    pub(crate) fn faults(&self, faults: impl IntoIterator<Item = Fault>) {
        self.api.state.lock().unwrap().faults.extend(faults);
    }

    /// The next answer with this object goes wrong.
    pub(crate) fn fault_of(&self, object: ObjectDigest, fault: Fault) {
        self.api.state.lock().unwrap().object_faults.insert(object, fault);
    }

    pub(crate) fn answer_descriptors_with(&self, problem: Option<Problem>) {
        self.api.state.lock().unwrap().problem = problem;
    }

    /// Requests for descriptors wait until the gate opens.
    pub(crate) fn hold_descriptors(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.api.state.lock().unwrap().gate = Some(gate.clone());
        gate
    }

    /// The requests of one kind: `service`, `version` or `object`.
    pub(crate) fn requests(&self, kind: &str) -> Vec<OriginRequest> {
        let state = self.api.state.lock().unwrap();
        state.requests.iter().filter(|requests| requests.route == kind).cloned().collect()
    }
}

impl Api {
    async fn observe(&self, request: Request<RequestBody>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().read(MAX_MESSAGE_BYTES).await.unwrap();
        let mut state = self.state.lock().unwrap();
        let code = state.observed_answers.pop_front().unwrap_or(204);
        if code == 204 {
            state.observed.iter_mut().for_each(|observed| observed.push(EdgeObserved::parse(&body).unwrap()));
            state.observed_paths.push(path);
        }
        if code == 429 {
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, NAME_TWICE, "Another edge has this name", "");
            return problem.retry_after(Duration::from_secs(1)).into_response();
        }
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::from_u16(code).unwrap();
        response
    }
}

impl Handler for Api {
    async fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        assert_eq!(peer.identity.as_ref().map(|identity| identity.role), Some(Role::Edge), "only edges call");
        if self.state.lock().unwrap().refuses {
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            return response;
        }
        if request.uri().path() == members::PATH
            && let Some(members) = &self.state.lock().unwrap().members
        {
            return Response::new(Body::from(members.to_json()));
        }
        if request.uri().path().starts_with(EDGE_PATH) && self.state.lock().unwrap().observed.is_some() {
            return self.observe(request).await;
        }
        let Ok(route) = Route::parse(request.uri().path()) else { return Problem::no_such_path().into_response() };
        let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let gate = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(OriginRequest {
                route: route.label().to_owned(),
                object: match &route {
                    Route::Object(_, digest) | Route::AccessShard(digest) => Some(*digest),
                    _ => None,
                },
                no_cache: header(header::CACHE_CONTROL).as_deref() == Some("no-cache"),
                query: request.uri().query().map(str::to_owned),
                request_id: header(REQUEST_ID),
            });
            state.gate.clone()
        };
        if route == Route::Heartbeats {
            let body = request.into_body().read(MAX_REQUEST_BYTES).await.unwrap();
            let state = self.state.lock().unwrap();
            let wanted = HeartbeatRequest::parse(&body).unwrap().services.into_iter();
            let services = wanted.filter_map(|service| {
                let staged = state.staged_statements.get(&service).cloned();
                Some(SignedFreshness { envelope: state.statements.get(&service)?.clone(), staged, service })
            });
            return Response::new(Body::from(HeartbeatAnswer { services: services.collect() }.to_json()));
        }
        let mut state = match (&route, gate) {
            (Route::Service(_) | Route::Version(..), Some(gate)) => {
                gate.acquire().await.unwrap().forget();
                self.state.lock().unwrap()
            }
            _ => self.state.lock().unwrap(),
        };
        match route {
            Route::Object(repository, digest) => {
                let object = state.objects.get(&digest).filter(|_| repository.as_str() == REPOSITORY).cloned();
                let fault = state.object_faults.remove(&digest).or_else(|| state.faults.pop_front());
                match (object, fault) {
                    (None, _) | (_, Some(Fault::Missing)) => Problem::no_such_path().into_response(),
                    (_, Some(Fault::Refuse(seconds))) => overloaded(seconds),
                    (Some(object), fault) => object::answer(&object, fault),
                }
            }
            Route::Events => {
                let owned = state.descriptors.iter().filter(|(service, _)| !state.unowned.contains(*service));
                let current: Vec<Bytes> = owned.map(|(_, bytes)| bytes.clone()).collect();
                match &mut state.events {
                    Some(events) => Response::new(events.follow(request.uri().query(), current)),
                    None => Problem::no_such_path().into_response(),
                }
            }
            Route::AccessShard(digest) => match state.shards.get(&digest) {
                Some(json) => Response::new(Body::Full(json.clone())),
                None => Problem::no_such_shard(&digest).into_response(),
            },
            _ if state.problem.is_some() => state.problem.clone().unwrap().into_response(),
            Route::Service(service) => {
                descriptor(state.descriptors.get(service.as_str()), header(header::IF_NONE_MATCH).as_deref())
            }
            Route::Versions(service) => list(state.lists.get(service.as_str())),
            Route::Version(service, digest) => descriptor(state.versions.get(&format!("{service}/{digest}")), None),
            _ => Problem::no_such_path().into_response(),
        }
    }
}

fn descriptor(bytes: Option<&Bytes>, held: Option<&str>) -> Response<Body> {
    let Some(bytes) = bytes else { return Problem::no_such_path().into_response() };
    let tag = Descriptor::parse(bytes.clone()).unwrap().etag();
    let mut response = Response::new(Body::Empty);
    if held == Some(tag.as_str()) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        *response.body_mut() = Body::Full(bytes.clone());
    }
    response
}

fn list(versions: Option<&Vec<(Descriptor, bool)>>) -> Response<Body> {
    let Some(versions) = versions else { return Problem::no_such_path().into_response() };
    let listed = versions.iter().map(|(descriptor, followed)| ListedVersion {
        descriptor: RawValue::from_string(String::from_utf8(descriptor.bytes().to_vec()).unwrap()).unwrap(),
        followed: *followed,
    });
    Response::new(Body::from(Versions { versions: listed.collect() }.to_json()))
}

fn overloaded(seconds: u64) -> Response<Body> {
    let problem =
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too much to do", "As the test wants it.");
    problem.retry_after(Duration::from_secs(seconds)).into_response()
}
