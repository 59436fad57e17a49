//! `GET` and `HEAD` of `/v2/weir/{service}/manifests/{tag or digest}`.

use std::borrow::Cow;

use http::{Method, Request};
use weir_protocol::attached::Attached;
use weir_protocol::conditional::if_none_match_tag;
use weir_protocol::digest::Sha256;
use weir_protocol::name::ServiceName;
use weir_protocol::oci::{LATEST, STAGED};
use weir_runtime::serve::{Body, RequestBody};

use super::error::OciError;
use super::route::Reference;
use super::{By, Named, OciApi};
use crate::agent_api::{ApiResponse, CacheLifetime, ResponseKind, evaluate_tag};
use crate::api_error::ApiError;
use crate::catalog::LookupResult;
use crate::version::{OciValues, Version};

impl Reference {
    /// By what its version is found.
    fn by(&self) -> By {
        match self {
            Reference::Tag(_) => By::Tag,
            Reference::Digest(_) => By::Digest,
            Reference::Attached(..) => By::Attached,
        }
    }

    fn lifetime(&self) -> CacheLifetime {
        match self {
            Reference::Tag(_) | Reference::Attached(..) => CacheLifetime::Current,
            Reference::Digest(_) => CacheLifetime::Immutable,
        }
    }

    /// Whether its manifest belongs to this version, if there is one.
    fn names(&self, version: &Version) -> bool {
        match self {
            Reference::Tag(tag) if matches!(&**tag, LATEST | STAGED) => true,
            Reference::Tag(tag) => version.oci.as_ref().is_some_and(|oci| oci.tags.contains(tag)),
            Reference::Digest(sha256) => has_manifest(version, sha256),
            Reference::Attached(sha256, _) => version.descriptor().oci().is_some_and(|form| form.sha256 == *sha256),
        }
    }

    /// Exchanges the version in force for the staged one where the tag is about that. A tag has no audience: it says the same to
    /// all readers.
    fn choose(&self, mut found: LookupResult) -> LookupResult {
        if matches!(self, Self::Tag(tag) if tag == STAGED)
            && let Some(staged) = found.version.later().cloned()
        {
            found.version = staged;
        }
        found
    }

    fn text(&self) -> String {
        match self {
            Reference::Tag(tag) | Reference::Attached(_, tag) => tag.chars().take(128).collect(),
            Reference::Digest(sha256) => format!("sha256:{sha256}"),
        }
    }
}

/// Whether a version has a manifest with this digest: its own, or one that is attached to it.
pub(super) fn has_manifest(version: &Version, sha256: &Sha256) -> bool {
    let Some(form) = version.descriptor().oci() else { return false };
    form.sha256 == *sha256 || version.attached().iter().any(|attached| attached.sha256 == *sha256)
}

impl OciApi {
    pub(super) fn manifest_fast_path(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        reference: &Reference,
    ) -> Option<ApiResponse> {
        let found = self.in_force(request, service, reference.by(), |version| reference.names(version))?;
        self.manifest_of(request, &reference.choose(found), service, reference).ok()
    }

    pub(super) async fn manifest(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        reference: &Reference,
    ) -> Result<ApiResponse, OciError> {
        let found = self.find(request, service, reference.by(), |version| reference.names(version)).await?;
        let found = found.ok_or_else(|| OciError::no_such_manifest(service, &reference.text()))?;
        self.manifest_of(request, &reference.choose(found), service, reference)
    }

    fn manifest_of(
        &self,
        request: &Request<RequestBody>,
        found: &LookupResult,
        service: &ServiceName,
        reference: &Reference,
    ) -> Result<ApiResponse, OciError> {
        let form = found.version.descriptor().oci().zip(found.version.oci.as_ref());
        let no_form = if found.version.is_later() { OciError::no_staged_form } else { OciError::no_form };
        let (form, of_version) = form.ok_or_else(|| no_form(service))?;
        let no_such_manifest = || OciError::no_such_manifest(service, &reference.text());
        let attached = |is: &dyn Fn(&Attached) -> bool| {
            let found = found.version.attached().iter().find(|attached| is(attached));
            found.map(Some).ok_or_else(no_such_manifest)
        };
        let attached = match reference {
            Reference::Tag(_) => None,
            Reference::Digest(sha256) if form.sha256 == *sha256 => None,
            Reference::Digest(sha256) => attached(&|it| it.sha256 == *sha256)?,
            Reference::Attached(_, tag) => attached(&|it| it.tag.as_ref() == Some(tag))?,
        };
        let of_attached;
        let (manifest, values) = match attached {
            None => (form.manifest.as_bytes(), of_version),
            Some(Attached { manifest, sha256, media_type, .. }) => {
                of_attached = OciValues::new(sha256, media_type, Vec::new()).ok_or_else(no_such_manifest)?;
                (&manifest[..], &of_attached)
            }
        };
        let current = &values.tag;
        let none_match = |tags: &str| if_none_match_tag(tags, &current.text).then_some(Cow::from(&current.text));
        let content = match evaluate_tag(request.method(), request.headers(), current, None, none_match) {
            ResponseKind::PreconditionFailed => return Err(ApiError::PreconditionFailed.into()),
            ResponseKind::NotModified(_) => None,
            _ => Some((&values.media_type, manifest.len() as u64)),
        };
        let named = Named { digest: &values.digest, tag: &current.value, content };
        let mut answer = self.respond(found, found.status, reference.lifetime(), &named);
        if content.is_some() && *request.method() == Method::GET {
            *answer.response.body_mut() = Body::from(manifest.to_vec());
        }
        Ok(answer)
    }
}
