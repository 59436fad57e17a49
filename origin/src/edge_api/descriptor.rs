//! `/v1/services/{service}` and `/v1/services/{service}/versions/{digest}`.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderValue, Request, Response, StatusCode, header};
use weir_protocol::conditional;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_runtime::serve::{Body, RequestBody};

use super::EdgeApi;
use super::failure::{Failure, Unpublished};
use crate::service::Service;

impl EdgeApi {
    /// The current descriptor, from memory.
    pub(super) fn current_descriptor(
        &self,
        request: &Request<RequestBody>,
        name: &ServiceName,
    ) -> Result<Response<Body>, Failure> {
        let service = self.service(name)?;
        match service.current() {
            Some(descriptor) => Ok(answer(request, &descriptor)),
            None => Err(self.not_published(&service)),
        }
    }

    /// The descriptor of a retained version.
    pub(super) async fn retained_descriptor(
        &self,
        request: &Request<RequestBody>,
        name: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Response<Body>, Failure> {
        let service = self.service(name)?;
        if let Some(current) = service.current().filter(|current| current.publication().digest == *digest) {
            return Ok(answer(request, &current));
        }
        match self.publisher.version(&service.repository, name, digest).await {
            Ok(Some(descriptor)) => Ok(answer(request, &descriptor)),
            // The versions may not be loaded yet.
            Ok(None) if service.current().is_none() => Err(self.not_published(&service)),
            Ok(None) => Err(Failure::NoSuchVersion(name.clone(), *digest)),
            Err(error) => {
                tracing::warn!(service = %name, %error, "a retained version cannot be read");
                Err(Failure::Unreadable)
            }
        }
    }

    fn service(&self, name: &ServiceName) -> Result<Arc<Service>, Failure> {
        if let Some(service) = self.catalog.service(name) {
            return Ok(service);
        }
        if let Some(why) = self.lost_definitions.why(&self.catalog.snapshot(), SystemTime::now()) {
            return Err(Failure::DefinitionsMissing(name.clone(), why));
        }
        // The definition may have arrived in between.
        self.catalog.service(name).ok_or_else(|| Failure::NoSuchService(name.clone()))
    }

    fn not_published(&self, service: &Service) -> Failure {
        let repository = self.catalog.repository(&service.repository).map(|worker| worker.state());
        let why = Unpublished::of(repository.as_ref(), &service.condition(), SystemTime::now());
        Failure::NotPublished(service.name.clone(), why)
    }
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
