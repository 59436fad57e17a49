//! `GET` of `/v2/weir/{service}/referrers/{digest}`: what is attached to the manifest of a version.

use http::{HeaderName, HeaderValue, Request, header};
use serde_json::{Value, json};
use weir_protocol::attached::Attached;
use weir_protocol::digest::Sha256;
use weir_protocol::name::ServiceName;
use weir_protocol::query;
use weir_runtime::serve::RequestBody;

use super::error::OciError;
use super::manifests::has_manifest;
use super::{By, OciApi, json};
use crate::agent_api::{ApiResponse, CacheLifetime};
use crate::version::Version;

const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

const FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");

impl OciApi {
    /// A digest that no version has is one to which nothing refers.
    pub(super) async fn referrers(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        of: &Sha256,
    ) -> Result<ApiResponse, OciError> {
        let pairs = query::pairs(request.uri().query().unwrap_or_default()).unwrap_or_default();
        let artifact_type = pairs.iter().find(|(key, _)| *key == "artifactType").map(|(_, value)| &**value);
        let found = self.find(request, service, By::Attached, |version| has_manifest(version, of)).await?;
        let referrers = found.as_ref().map(|found| referrers(&found.version, of, artifact_type)).unwrap_or_default();
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": referrers });
        let mut response = json(INDEX_TYPE, index.to_string());
        let headers = response.headers_mut();
        if artifact_type.is_some() {
            headers.insert(FILTERS_APPLIED, HeaderValue::from_static("artifactType"));
        }
        let Some(found) = found else {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            return Ok(ApiResponse::own(response));
        };
        self.reads.common_headers.caching(headers, &found, &found.status, CacheLifetime::Current);
        Ok(ApiResponse { response, status: found.status, tier: None })
    }
}

/// The content descriptors of what refers to a manifest: nothing refers to what is itself attached.
fn referrers(version: &Version, of: &Sha256, artifact_type: Option<&str>) -> Vec<Value> {
    if version.descriptor().oci().is_none_or(|form| form.sha256 != *of) {
        return Vec::new();
    }
    let listed = |it: &&Attached| it.tag.is_none() && artifact_type.is_none_or(|wanted| it.artifact_type == wanted);
    let descriptor = |it: &Attached| {
        let mut descriptor = json!({
            "mediaType": it.media_type, "digest": format!("sha256:{}", it.sha256), "size": it.manifest.len(),
            "artifactType": it.artifact_type,
        });
        if !it.annotations.is_empty() {
            descriptor["annotations"] = json!(it.annotations);
        }
        descriptor
    };
    version.attached().iter().filter(listed).map(descriptor).collect()
}
