//! The versions of a service over HTTP: history, diff, rollback and pin.

use http::Response;
use http::request::Parts;
use serde::Deserialize;
use serde_json::json;
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::part;
use weir_protocol::problem::Problem;
use weir_protocol::query::{self, QueryError};
use weir_runtime::serve::Body;

use super::uncached;
use super::validation::explained;
use crate::versions::{ChangeRequest, Versions};

/// Publications in a page by default.
const DEFAULT_PAGE: usize = 100;

/// The most publications in a page.
const LARGEST_PAGE: usize = 200;

/// Listed differences by default.
const DEFAULT_DIFFERENCES: usize = 100;

/// The most listed differences.
const MOST_DIFFERENCES: usize = 1000;

/// `GET …/history`.
pub(super) async fn history(versions: &Versions, name: &ServiceName, head: &Parts) -> Result<Response<Body>, Problem> {
    let (mut limit, mut before) = (DEFAULT_PAGE, None::<Generation>);
    for (key, value) in query::pairs(head.uri.query().unwrap_or_default())? {
        match key {
            "limit" => limit = bounded(key, &value, LARGEST_PAGE)?,
            "page" => before = Some(query::parsed(key, &value)?),
            other => return Err(QueryError::unknown(other, "`limit` and `page`").into()),
        }
    }
    let page = versions.history(name, before, limit).await?;
    let next = page.next_before.map(|generation| generation.to_string());
    let mut publications = json!(page.publications);
    // Of the last one of a page the one before it is not known here.
    for (at, pair) in page.publications.windows(2).enumerate() {
        let changed = part::changed(&pair[1].entry.parts, &pair[0].entry.parts);
        if !changed.is_empty() {
            publications[at]["changed_parts"] = json!(changed);
        }
    }
    Ok(uncached(&json!({ "publications": publications, "next_page": next })))
}

/// `GET …/diff?from=…&to=…`.
pub(super) async fn diff(versions: &Versions, name: &ServiceName, head: &Parts) -> Result<Response<Body>, Problem> {
    let (mut limit, mut from, mut to) = (DEFAULT_DIFFERENCES, None::<TarballDigest>, None::<TarballDigest>);
    for (key, value) in query::pairs(head.uri.query().unwrap_or_default())? {
        match key {
            "limit" => limit = bounded(key, &value, MOST_DIFFERENCES)?,
            "from" => from = Some(query::parsed(key, &value)?),
            "to" => to = Some(query::parsed(key, &value)?),
            other => return Err(QueryError::unknown(other, "`from`, `to` and `limit`").into()),
        }
    }
    let (Some(from), Some(to)) = (from, to) else {
        return Err(QueryError::new("name two digests: `…/diff?from=b3-…&to=b3-…`").into());
    };
    let diff = versions.diff(name, &from, &to, limit).await?;
    Ok(uncached(&diff))
}

/// The body of a rollback or a pin. With `generation` it applies only to this generation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VersionRequest {
    digest: Option<TarballDigest>,
    generation: Option<Generation>,
}

impl VersionRequest {
    /// Parses the body; an empty one has no fields.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Problem> {
        if body.is_empty() {
            return Ok(Self { digest: None, generation: None });
        }
        weir_protocol::json::from_slice(body)
            .map_err(|error| Problem::malformed(format!("the body: {}.", explained(&error))))
    }

    /// Publishes a retained version again, and pins the service to it.
    pub(super) async fn roll_back(
        self,
        versions: &Versions,
        name: &ServiceName,
        by: Option<String>,
    ) -> Result<(), Problem> {
        let missing = || Problem::malformed("name the `digest` to roll back to; `…/history` lists the retained ones.");
        let digest = self.digest.ok_or_else(missing)?;
        Ok(versions.roll_back(name, &digest, ChangeRequest { by, expected: self.generation }).await?)
    }

    /// Pins the service to its current version.
    pub(super) async fn pin(self, versions: &Versions, name: &ServiceName, by: Option<String>) -> Result<(), Problem> {
        if self.digest.is_some() {
            let detail = "a pin applies to the current version; `…/rollback` returns to a digest and pins it.";
            return Err(Problem::malformed(detail));
        }
        Ok(versions.pin(name, ChangeRequest { by, expected: self.generation }).await?)
    }

    /// Lets the service follow its ref again.
    pub(super) async fn unpin(
        self,
        versions: &Versions,
        name: &ServiceName,
        by: Option<String>,
    ) -> Result<(), Problem> {
        if self.digest.is_some() {
            return Err(Problem::malformed("`digest` is not allowed here."));
        }
        versions.unpin(name, ChangeRequest { by, expected: self.generation }).await?;
        Ok(())
    }
}

fn bounded(key: &str, value: &str, most: usize) -> Result<usize, QueryError> {
    let number = query::parsed(key, value)?;
    if (1..=most).contains(&number) { Ok(number) } else { Err(QueryError::new(format!("`{key}` is from 1 to {most}"))) }
}
