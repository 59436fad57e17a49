//! `GET` of `/v2/weir/{service}/referrers/{digest}`: no artifact refers to another one yet.

use http::{HeaderName, HeaderValue, Request};
use serde_json::json;
use weir_protocol::name::ServiceName;
use weir_protocol::query;
use weir_runtime::serve::RequestBody;

use super::error::OciError;
use super::{By, OciApi, json};
use crate::agent_api::{ApiResponse, CacheLifetime};

const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

const FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");

impl OciApi {
    pub(super) async fn referrers(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
    ) -> Result<ApiResponse, OciError> {
        let found = self.find(request, service, By::Tag, |_| true).await?;
        let found = found.ok_or_else(|| OciError::no_such_repository(service))?;
        found.version.oci.as_ref().ok_or_else(|| OciError::no_form(service))?;
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [] });
        let mut response = json(INDEX_TYPE, index.to_string());
        let headers = response.headers_mut();
        let pairs = query::pairs(request.uri().query().unwrap_or_default()).unwrap_or_default();
        if pairs.iter().any(|(key, _)| *key == "artifactType") {
            headers.insert(FILTERS_APPLIED, HeaderValue::from_static("artifactType"));
        }
        self.reads.common_headers.caching(headers, &found, &found.status, CacheLifetime::Current);
        Ok(ApiResponse { response, status: found.status, tier: None })
    }
}
