//! Answers clients of registries below `/v2/`: the read-only part of the OCI distribution specification, version 1.1.
//!
//! `weir/<service>` is a repository. What a manifest and its blobs are was decided by the origin, in the OCI form of the
//! version; here they are found by tag and by digest, and sent as tarballs are.

mod blobs;
mod challenge;
mod error;
mod manifests;
mod password;
mod referrers;
mod route;
mod tags;
mod token;

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use weir_protocol::cache_status::CacheStatus;
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;
use weir_runtime::serve::{Body, Handler, Peer, RequestBody, RequestFacts};

use self::error::OciError;
use self::route::OciRoute;
use crate::access::AccessDecision;
use crate::agent_api::{AgentApi, ApiResponse, Authorized, CacheLifetime, ReadContext, Timing};
use crate::catalog::{LIST_TTL, LookupResult, RevalidateMode, VersionList};
use crate::request_headers::{is_forced, revalidate_mode};
use crate::version::Version;

pub(crate) use self::route::is_path;

/// The first component of the names of all repositories.
const NAMESPACE: &str = "weir";

const DOCKER_CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

#[derive(Clone)]
pub(crate) struct OciApi {
    reads: Arc<ReadContext>,
}

/// By what content is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// What it names never changes.
    Digest,
    /// What is attached to what a digest names: versions are signed again.
    Attached,
    Tag,
}

impl OciApi {
    pub(crate) fn new(agents: &AgentApi) -> Self {
        Self { reads: agents.reads.clone() }
    }

    /// The requested resource, if the client may read it. Authorises before anything is looked up.
    fn admit(&self, request: &Request<RequestBody>, peer: &Peer) -> (Authorized, Result<OciRoute, OciError>) {
        let route = OciRoute::parse(request.uri().path());
        let label = label(&route);
        let service = route.as_ref().ok().and_then(OciRoute::service);
        let decision = self.reads.access.decide(request.headers(), peer, service);
        let target = match decision {
            AccessDecision::Unauthorized(refusal) => Err(challenge::error(request, service, refusal)),
            // Clients push to paths that are none here.
            _ if !matches!(*request.method(), Method::GET | Method::HEAD) => Err(OciError::read_only()),
            AccessDecision::Allowed(_) => route,
            AccessDecision::OutOfScope => route.and_then(|route| Err(route.absent())),
        };
        (Authorized { label, decision }, target)
    }

    async fn answer(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        target: &OciRoute,
    ) -> Result<ApiResponse, OciError> {
        let started = Instant::now();
        let timed = |answer: ApiResponse| answer.after(Timing { version: started.elapsed(), body: None });
        match target {
            OciRoute::Base => {
                let mut response = json("application/json", "{}".into());
                response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                Ok(ApiResponse::own(response))
            }
            OciRoute::Token => self.token(request, peer),
            OciRoute::Manifest(service, reference) => self.manifest(request, service, reference).await.map(timed),
            OciRoute::Blob(service, digest) => self.blob(request, service, digest).await,
            OciRoute::Tags(service) => self.tags(request, service).await.map(timed),
            OciRoute::Referrers(service, of) => self.referrers(request, service, of).await.map(timed),
        }
    }

    /// The version in force if it has this and no origin need be asked.
    fn in_force(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        by: By,
        has: impl Fn(&Version) -> bool,
    ) -> Option<LookupResult> {
        let lookup = &self.reads.lookup;
        match by {
            _ if is_forced(request) => None,
            By::Digest | By::Attached => lookup.having(service, has),
            By::Tag => lookup.fast_path(service).filter(|found| has(&found.version)),
        }
    }

    /// The version of a service that has this: the one in force, else the newest that is retained. `None`: there is none.
    async fn find(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        by: By,
        has: impl Fn(&Version) -> bool,
    ) -> Result<Option<LookupResult>, OciError> {
        if let Some(found) = self.in_force(request, service, by, &has) {
            return Ok(Some(found));
        }
        let in_list = || self.reads.lookup.listed(service, &has);
        let is_new = |found: &LookupResult| by == By::Digest || found.age <= LIST_TTL;
        if by != By::Tag
            && !is_forced(request)
            && let Some(found) = in_list().filter(is_new)
        {
            return Ok(Some(found));
        }
        match self.look_up(request, service, by, &has, revalidate_mode(request)).await {
            // What was attached before is better than nothing.
            Err(error) if by == By::Attached => in_list().map(Some).ok_or(error),
            found => found,
        }
    }

    /// The same by queries to the origin, as far as the mode demands them.
    async fn look_up(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        by: By,
        has: impl Fn(&Version) -> bool,
        mode: RevalidateMode,
    ) -> Result<Option<LookupResult>, OciError> {
        let (lookup, request_id) = (&self.reads.lookup, RequestId::of(request.headers()));
        let found = lookup.find(service, mode, request_id.as_ref()).await;
        let found = found.map_err(|error| OciError::lookup(service, error))?;
        if has(&found.version) {
            return Ok(Some(found));
        }
        let in_force = found.version.descriptor().publication().digest;
        let choose = |list: &VersionList| match by {
            By::Digest | By::Attached => list.newest(&has),
            By::Tag => list.tagged(in_force).find(|version| has(version)).cloned(),
        };
        let is_stale = mode == RevalidateMode::Always;
        let listed = lookup.find_listed(service, choose, is_stale, request_id.as_ref()).await;
        listed.map_err(|error| OciError::not_known(service, error))
    }

    /// A response without a body, with the headers of all manifests and blobs.
    fn respond(
        &self,
        found: &LookupResult,
        status: CacheStatus,
        lifetime: CacheLifetime,
        named: &Named<'_>,
    ) -> ApiResponse {
        self.reads.lookup.pulled(&found.version.descriptor().publication().service);
        let mut response = Response::new(Body::Empty);
        let headers = response.headers_mut();
        headers.reserve(16);
        headers.insert(header::ETAG, named.tag.clone());
        headers.insert(DOCKER_CONTENT_DIGEST, named.digest.clone());
        // The type is the upstream's word.
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        self.reads.common_headers.caching(headers, found, &status, lifetime);
        match named.content {
            None => *response.status_mut() = StatusCode::NOT_MODIFIED,
            Some((media_type, length)) => {
                headers.insert(header::CONTENT_TYPE, media_type.clone());
                headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            }
        }
        ApiResponse { response, status, tier: None }
    }

    fn finish(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        authorized: Authorized,
        answered: Result<ApiResponse, OciError>,
    ) -> Response<Body> {
        let facts = || facts_of(request.uri().path());
        self.reads.complete(request, peer, authorized, answered.map_err(OciError::into_response), facts)
    }
}

impl Handler for OciApi {
    fn fast_path(&self, request: &Request<RequestBody>, peer: &Peer) -> Option<Response<Body>> {
        let with_token = password::with_token(request);
        let request = with_token.as_ref().unwrap_or(request);
        let (authorized, target) = self.admit(request, peer);
        let answered = match target {
            Ok(OciRoute::Manifest(service, reference)) => Ok(self.manifest_fast_path(request, &service, &reference)?),
            Ok(OciRoute::Blob(service, digest)) => Ok(self.blob_fast_path(request, &service, &digest)?),
            Err(error) if !may_pass(authorized.decision) => Err(error),
            _ => return None,
        };
        Some(self.finish(request, peer, authorized, answered))
    }

    async fn handle(&self, mut request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        password::use_as_token(request.headers_mut());
        let (mut authorized, mut target) = self.admit(&request, &peer);
        if may_pass(authorized.decision) {
            self.reads.access.key_fetched(request.headers()).await;
            (authorized, target) = self.admit(&request, &peer);
        }
        let answered = match target {
            Ok(target) => self.answer(&request, &peer, &target).await,
            Err(error) => Err(error),
        };
        self.finish(&request, &peer, authorized, answered)
    }
}

/// What a path of this API says.
pub(crate) fn facts_of(path: &str) -> RequestFacts {
    let route = OciRoute::parse(path);
    let service = route.as_ref().ok().and_then(OciRoute::service).cloned();
    RequestFacts { route: Some(label(&route)), service, ..RequestFacts::default() }
}

/// The value of a metric's label.
fn label(route: &Result<OciRoute, OciError>) -> &'static str {
    route.as_ref().map_or("unknown", OciRoute::label)
}

/// The key of the token may be one that is fetched now.
fn may_pass(decision: AccessDecision) -> bool {
    matches!(decision, AccessDecision::Unauthorized(refusal) if refusal.may_pass())
}

/// What a response is about.
struct Named<'a> {
    digest: &'a HeaderValue,
    tag: &'a HeaderValue,
    /// Media type and bytes. `None`: the client has it.
    content: Option<(&'a HeaderValue, u64)>,
}

/// The name of a service's repository.
fn repository(service: &ServiceName) -> String {
    format!("{NAMESPACE}/{service}")
}

/// A response with a document.
fn json(media_type: &'static str, document: String) -> Response<Body> {
    let mut response = Response::new(Body::from(document.into_bytes()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
