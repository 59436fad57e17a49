//! `GET` and `HEAD` of `/v2/weir/{service}/manifests/{tag or digest}`.

use std::borrow::Cow;

use http::{Method, Request};
use weir_protocol::conditional::if_none_match_tag;
use weir_protocol::name::ServiceName;
use weir_protocol::oci::LATEST;
use weir_runtime::serve::{Body, RequestBody};

use super::error::OciError;
use super::route::Reference;
use super::{By, Named, OciApi};
use crate::agent_api::{ApiResponse, ResponseKind, evaluate_tag};
use crate::api_error::ApiError;
use crate::catalog::LookupResult;
use crate::version::Version;

impl Reference {
    fn by(&self) -> By {
        match self {
            Reference::Tag(_) => By::Tag,
            Reference::Digest(_) => By::Digest,
        }
    }

    /// Whether it names this version.
    fn names(&self, version: &Version) -> bool {
        match self {
            Reference::Tag(tag) if tag == LATEST => true,
            Reference::Tag(tag) => version.oci.as_ref().is_some_and(|oci| oci.tags.contains(tag)),
            Reference::Digest(sha256) => version.descriptor().oci().is_some_and(|form| form.sha256 == *sha256),
        }
    }

    fn text(&self) -> String {
        match self {
            Reference::Tag(tag) => tag.chars().take(128).collect(),
            Reference::Digest(sha256) => format!("sha256:{sha256}"),
        }
    }
}

impl OciApi {
    pub(super) fn manifest_fast_path(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        reference: &Reference,
    ) -> Option<ApiResponse> {
        let found = self.in_force(request, service, reference.by(), |version| reference.names(version))?;
        self.manifest_of(request, &found, service, reference.by()).ok()
    }

    pub(super) async fn manifest(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        reference: &Reference,
    ) -> Result<ApiResponse, OciError> {
        let found = self.find(request, service, reference.by(), |version| reference.names(version)).await?;
        let found = found.ok_or_else(|| OciError::no_such_manifest(service, &reference.text()))?;
        self.manifest_of(request, &found, service, reference.by())
    }

    fn manifest_of(
        &self,
        request: &Request<RequestBody>,
        found: &LookupResult,
        service: &ServiceName,
        by: By,
    ) -> Result<ApiResponse, OciError> {
        let form = found.version.descriptor().oci().zip(found.version.oci.as_ref());
        let (form, values) = form.ok_or_else(|| OciError::no_form(service))?;
        let current = &values.tag;
        let none_match = |tags: &str| if_none_match_tag(tags, &current.text).then_some(Cow::from(&current.text));
        let content = match evaluate_tag(request.method(), request.headers(), current, None, none_match) {
            ResponseKind::PreconditionFailed => return Err(ApiError::PreconditionFailed.into()),
            ResponseKind::NotModified(_) => None,
            _ => Some((&values.media_type, form.manifest.len() as u64)),
        };
        let named = Named { digest: &values.digest, tag: &current.value, content };
        let mut answer = self.respond(found, found.status, by, &named);
        if content.is_some() && *request.method() == Method::GET {
            *answer.response.body_mut() = Body::from(form.manifest.clone().into_bytes());
        }
        Ok(answer)
    }
}
