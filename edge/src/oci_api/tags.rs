//! `GET` of `/v2/weir/{service}/tags/list`.

use http::{HeaderValue, Request, header};
use serde_json::json;
use tokio::time::timeout;
use weir_protocol::name::ServiceName;
use weir_protocol::oci::LATEST;
use weir_protocol::query;
use weir_protocol::request_id::RequestId;
use weir_runtime::serve::RequestBody;

use super::error::OciError;
use super::{By, OciApi, json, repository};
use crate::agent_api::{ApiResponse, CacheLifetime};
use crate::catalog::{LIST_TTL, Listing, LookupError};

/// Which tags a client wants.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    /// The most tags.
    n: Option<usize>,
    /// The tag before the first one.
    last: Option<String>,
}

impl Page {
    fn parse(query: &str) -> Result<Self, OciError> {
        let malformed = |error: query::QueryError| OciError::malformed_page(error.to_string());
        let mut page = Self::default();
        // Other keys are those of clients that know extensions.
        for (key, value) in query::pairs(query).map_err(malformed)? {
            match key {
                "n" => page.n = Some(query::parsed(key, &value).map_err(malformed)?),
                "last" => page.last = Some(value.into_owned()),
                _ => {}
            }
        }
        Ok(page)
    }

    /// The tags of the page in order, and whether there are more.
    fn of(&self, mut tags: Vec<String>) -> (Vec<String>, bool) {
        tags.sort_unstable();
        tags.dedup();
        tags.retain(|tag| self.last.as_ref().is_none_or(|last| tag > last));
        let more = self.n.is_some_and(|n| n > 0 && tags.len() > n);
        tags.truncate(self.n.unwrap_or(usize::MAX));
        (tags, more)
    }
}

impl OciApi {
    pub(super) async fn tags(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
    ) -> Result<ApiResponse, OciError> {
        let page = Page::parse(request.uri().query().unwrap_or_default())?;
        let found = self.find(request, service, By::Tag, |_| true).await?;
        let found = found.ok_or_else(|| OciError::no_such_repository(service))?;
        let oci = found.version.oci.as_ref().ok_or_else(|| OciError::no_form(service))?;
        let mut tags = oci.tags.clone();
        // Without `staged`: who picks among all tags, or mirrors them, asked for no staged version.
        tags.push(LATEST.to_owned());
        let request_id = RequestId::of(request.headers());
        let listing = self.reads.lookup.versions(service, LIST_TTL, request_id.as_ref());
        let listing = timeout(found.policy.limits.wait, listing).await.unwrap_or(Err(LookupError::TooSlow));
        let list = match listing {
            Ok(Listing { list: list @ Some(_), .. }) => list,
            // An origin of the release before has no lists: the tags of the version in force are known.
            Ok(Listing { failure: None | Some(LookupError::Absent), .. }) => None,
            Ok(Listing { failure: Some(error), .. }) | Err(error) => return Err(OciError::not_known(service, error)),
        };
        let in_force = found.version.descriptor().publication().digest;
        let listed = list.iter().flat_map(|list| list.tagged(in_force));
        tags.extend(listed.filter_map(|version| version.oci.as_ref()).flat_map(|oci| oci.tags.iter().cloned()));
        let (tags, more) = page.of(tags);
        let name = repository(service);
        let next = tags.last().filter(|_| more).map(|last| {
            let n = tags.len();
            let link = format!("</v2/{name}/tags/list?n={n}&last={last}>; rel=\"next\"");
            HeaderValue::try_from(link).expect("names and tags are visible ASCII")
        });
        let mut response = json("application/json", json!({ "name": name, "tags": tags }).to_string());
        let headers = response.headers_mut();
        headers.extend(next.map(|next| (header::LINK, next)));
        self.reads.common_headers.caching(headers, &found, &found.status, CacheLifetime::Current);
        Ok(ApiResponse { response, status: found.status, tier: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_one_another() {
        let all = || ["b", "latest", "1.2.0", "a", "b"].map(str::to_owned).to_vec();
        let page = |query: &str| Page::parse(query).unwrap().of(all());
        assert_eq!(page(""), (vec!["1.2.0".into(), "a".into(), "b".into(), "latest".into()], false));
        assert_eq!(page("n=2&scope=x"), (vec!["1.2.0".into(), "a".into()], true));
        assert_eq!(page("n=2&last=a"), (vec!["b".into(), "latest".into()], false));
        assert_eq!(page("n=0"), (vec![], false));
        assert_eq!(page("last=z"), (vec![], false));
        for wrong in ["n=x", "n=-1", "last=%"] {
            assert_eq!(Page::parse(wrong).unwrap_err().code(), "PAGINATION_NUMBER_INVALID", "{wrong}");
        }
    }
}
