//! `/v1/services/{service}`, `/v1/services/{service}/versions` and `/v1/services/{service}/versions/{digest}`.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderValue, Request, Response, StatusCode, header};
use weir_protocol::conditional;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_publish::PublishError;
use weir_runtime::serve::{Body, RequestBody};
use weir_source::Service;

use super::problems::{self, LATER};
use super::{EdgeApi, InCluster};
use crate::catalog::Snapshot;
use crate::cluster::Unreadable;

impl EdgeApi {
    /// The current descriptor, from memory.
    pub(super) async fn current_descriptor(
        &self,
        request: &Request<RequestBody>,
        name: &ServiceName,
    ) -> Result<Response<Body>, Problem> {
        let snapshot = self.catalog.snapshot();
        let owned = snapshot.services.get(name).filter(|service| self.is_owner(&snapshot, &service.repository));
        let Some(service) = owned else { return Box::pin(self.current_elsewhere(request, name)).await };
        match service.current() {
            Some(descriptor) => Ok(answer(request, &descriptor)),
            None => Err(self.not_published(service)),
        }
    }

    /// The current descriptor of a service that this origin does not own or know.
    async fn current_elsewhere(
        &self,
        request: &Request<RequestBody>,
        name: &ServiceName,
    ) -> Result<Response<Body>, Problem> {
        let edge_has_it = request.headers().contains_key(header::IF_NONE_MATCH);
        let before = self.service(name, edge_has_it).await?;
        self.refresh(&before.repository).await?;
        // It may have been deleted.
        let service = self.service(name, edge_has_it).await?;
        match service.current() {
            Some(descriptor) => Ok(answer(request, &descriptor)),
            None => Err(self.not_published(&service)),
        }
    }

    /// Whether what is in memory about a repository is as new as what is stored.
    pub(super) fn is_owner(&self, snapshot: &Snapshot, repository: &RepositoryName) -> bool {
        snapshot.owns(repository) && self.cluster.as_ref().is_none_or(|cluster| cluster.cluster.validity().holds())
    }

    /// Reads the state of a repository again unless this origin owns it, or has done so just now.
    pub(super) async fn refresh(&self, repository: &RepositoryName) -> Result<(), Problem> {
        if self.is_owner(&self.catalog.snapshot(), repository) {
            return Ok(());
        }
        let Some(InCluster { replicas, .. }) = &self.cluster else { return Ok(()) };
        replicas.refresh(repository).await.map_err(|Unreadable| problems::unreadable())
    }

    /// The descriptors of the current version and of all retained ones.
    pub(super) async fn versions(&self, name: &ServiceName) -> Result<Response<Body>, Problem> {
        let service = self.service(name, false).await?;
        Box::pin(self.refresh(&service.repository)).await?;
        match self.publisher.queries.versions(&service.repository, name).await {
            Ok(versions) if versions.versions.is_empty() => Err(self.not_published(&service)),
            Ok(versions) => {
                let mut response = Response::new(Body::from(versions.to_json()));
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
                Ok(response)
            }
            Err(error) => Err(unreadable(name, &error)),
        }
    }

    /// The descriptor of a retained version.
    pub(super) async fn retained_descriptor(
        &self,
        request: &Request<RequestBody>,
        name: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Response<Body>, Problem> {
        // No evidence: an edge passes requests for versions on to all clusters, also those of another cluster's services.
        let service = self.service(name, false).await?;
        // What is retained never changes, but it expires, and new versions come.
        if !self.is_owner(&self.catalog.snapshot(), &service.repository) {
            Box::pin(self.refresh(&service.repository)).await?;
        }
        if let Some(current) = service.current().filter(|current| current.publication().digest == *digest) {
            return Ok(answer(request, &current));
        }
        match self.publisher.queries.version(&service.repository, name, digest).await {
            Ok(Some(descriptor)) => Ok(answer(request, &descriptor)),
            // The versions may not be loaded yet.
            Ok(None) if service.current().is_none() => Err(self.not_published(&service)),
            Ok(None) => {
                let detail = format!("Service `{name}` has no retained version {digest}.");
                let problem = Problem::new(StatusCode::NOT_FOUND, "no-such-version", "No such version", detail);
                Err(problem.about("service", name))
            }
            Err(error) => Err(unreadable(name, &error)),
        }
    }

    /// A defined service. `edge_has_it`: the edge that requests it has a version of it.
    async fn service(&self, name: &ServiceName, edge_has_it: bool) -> Result<Arc<Service>, Problem> {
        if let Some(service) = self.catalog.service(name) {
            return Ok(service);
        }
        if let Some(InCluster { replicas, .. }) = &self.cluster {
            // Another member may have defined it.
            replicas.refresh_all().await.map_err(|Unreadable| problems::unreadable())?;
            if let Some(service) = self.catalog.service(name) {
                return Ok(service);
            }
        }
        let why = if let Some(why) = self.lost_definitions.why(name, edge_has_it) {
            why
        } else if self.cluster.as_ref().is_some_and(|cluster| !cluster.cluster.view().agree) {
            "the configuration of this origin differs from that of others, which may define it"
        } else if self.publisher.repositories.is_in_cluster() && self.publisher.repositories.is_published(name) {
            "it is published: the configuration of this origin may differ from that of others"
        } else {
            return Err(Problem::no_such_service(name));
        };
        let detail = format!("`{name}` is not defined here, but {why}.");
        let title = "The origin may not know all that operators defined";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "definitions-missing", title, detail);
        Err(problem.about("service", name).retry_after(LATER))
    }

    fn not_published(&self, service: &Service) -> Problem {
        let repository = self.catalog.repository(&service.repository).map(|worker| worker.state());
        problems::not_published(&service.name, repository.as_ref(), &service.condition(), SystemTime::now())
    }
}

fn unreadable(service: &ServiceName, error: &PublishError) -> Problem {
    tracing::warn!(%service, %error, "a retained version cannot be read");
    problems::unreadable()
}

fn answer(request: &Request<RequestBody>, descriptor: &Descriptor) -> Response<Body> {
    let etag = descriptor.etag();
    let matches = request
        .headers()
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| conditional::if_none_match_tag(value, &etag));
    let mut response = Response::new(Body::Empty);
    if matches {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        let bytes = descriptor.bytes().clone();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        *response.body_mut() = Body::from(bytes);
    }
    let headers = response.headers_mut();
    headers.insert(header::ETAG, HeaderValue::try_from(etag).expect("digits in quotes are a header value"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
