//! The versions of a service over HTTP: history, diff, rollback and pin.

use http::Response;
use http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::part;
use weir_protocol::plain_text::is_plain;
use weir_protocol::problem::Problem;
use weir_protocol::query::{self, QueryError};
use weir_publish::{CURRENT, PREVIOUS};
use weir_runtime::serve::Body;

use super::uncached;
use super::validation::explained;
use crate::versions::{ChangeRequest, VersionError, Versions};

/// Publications in a page by default.
const DEFAULT_PAGE: usize = 100;

/// The most publications in a page.
const LARGEST_PAGE: usize = 200;

/// Listed differences by default.
const DEFAULT_DIFFERENCES: usize = 100;

/// The longest reason of a change.
const MAX_REASON_BYTES: usize = 256;

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
    let (mut limit, mut from, mut to, mut texts) = (DEFAULT_DIFFERENCES, None::<String>, None::<String>, false);
    for (key, value) in query::pairs(head.uri.query().unwrap_or_default())? {
        match key {
            "limit" => limit = bounded(key, &value, MOST_DIFFERENCES)?,
            "from" => from = Some(value.into_owned()),
            "to" => to = Some(value.into_owned()),
            "texts" => texts = true,
            other => return Err(QueryError::unknown(other, "`from`, `to`, `texts` and `limit`").into()),
        }
    }
    let (Some(from), Some(to)) = (from, to) else {
        return Err(QueryError::new("name two revisions: `…/diff?from=previous&to=current`").into());
    };
    let (from, to) = (versions.resolve(name, &from).await?, versions.resolve(name, &to).await?);
    let mut answer = json!(versions.diff(name, &from.digest, &to.digest, limit, texts).await?);
    (answer["from"], answer["to"]) = (json!(from), json!(to));
    Ok(uncached(&answer))
}

/// The body of a rollback, a pin or an unpin. With `generation` it applies only to this generation.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VersionRequest {
    digest: Option<TarballDigest>,
    revision: Option<String>,
    generation: Option<Generation>,
    reason: Option<String>,
}

impl VersionRequest {
    /// Parses the body; an empty one has no fields.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Problem> {
        if body.is_empty() {
            return Ok(Self::default());
        }
        let request: Self = parsed(body)?;
        check_reason(request.reason.as_deref())?;
        if request.digest.is_some() && request.revision.is_some() {
            return Err(Problem::malformed("name either `digest` or `revision`."));
        }
        Ok(request)
    }

    fn change(&mut self, by: &str) -> ChangeRequest {
        ChangeRequest { by: Some(by.to_owned()), reason: self.reason.take(), expected: self.generation }
    }

    /// The version that the request names: a `digest` is exact, a `revision` is what people call it.
    async fn named(&self, versions: &Versions, name: &ServiceName) -> Result<Option<TarballDigest>, VersionError> {
        match (self.digest, &self.revision) {
            (None, Some(revision)) => Ok(Some(versions.resolve(name, revision).await?.digest)),
            (digest, _) => Ok(digest),
        }
    }

    /// Publishes a retained version again, and pins the service to it.
    pub(super) async fn roll_back(mut self, versions: &Versions, name: &ServiceName, by: &str) -> Result<(), Problem> {
        if let Some(revision @ (CURRENT | PREVIOUS)) = self.revision.as_deref() {
            // Read first: a change after it makes another version the previous one.
            let current = versions.resolve(name, CURRENT).await?;
            // Otherwise a repeated request would undo the first one.
            if revision == PREVIOUS
                && let Some(by) = current.by
            {
                let to = current.version.map_or_else(|| current.revision_id.to_string(), |version| version.to_string());
                return Err(VersionError::RolledBack { service: name.clone(), to, by }.into());
            }
            self.generation.get_or_insert(current.generation);
        }
        let missing =
            || Problem::malformed("name the `revision` to roll back to; `…/history` lists the retained ones.");
        let to = self.named(versions, name).await?.ok_or_else(missing)?;
        Ok(versions.roll_back(name, &to, self.change(by)).await?)
    }

    /// Pins the service to its current version, which the request may name.
    pub(super) async fn pin(mut self, versions: &Versions, name: &ServiceName, by: &str) -> Result<(), Problem> {
        if let Some(named) = self.named(versions, name).await? {
            let current = versions.resolve(name, CURRENT).await?;
            if named != current.digest {
                let detail = "a pin applies to the current version; `…/rollback` returns to another one and pins it.";
                return Err(Problem::malformed(detail));
            }
            self.generation.get_or_insert(current.generation);
        }
        Ok(versions.pin(name, self.change(by)).await?)
    }

    /// Lets the service follow its ref again.
    pub(super) async fn unpin(mut self, versions: &Versions, name: &ServiceName, by: &str) -> Result<(), Problem> {
        if self.digest.is_some() || self.revision.is_some() {
            return Err(Problem::malformed("neither `digest` nor `revision` is allowed here."));
        }
        versions.unpin(name, self.change(by)).await?;
        Ok(())
    }
}

/// Parses a body.
pub(super) fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    weir_protocol::json::from_slice(body)
        .map_err(|error| Problem::malformed(format!("the body: {}.", explained(&error))))
}

pub(super) fn check_reason(reason: Option<&str>) -> Result<(), Problem> {
    if reason.is_some_and(|reason| reason.len() > MAX_REASON_BYTES) {
        return Err(Problem::malformed(format!("`reason` has more than {MAX_REASON_BYTES} bytes.")));
    }
    if reason.is_some_and(|reason| !is_plain(reason)) {
        let detail = "`reason` has a line break or a character that is not shown, such as one that changes the direction of text.";
        return Err(Problem::malformed(detail));
    }
    Ok(())
}

fn bounded(key: &str, value: &str, most: usize) -> Result<usize, QueryError> {
    let number = query::parsed(key, value)?;
    if (1..=most).contains(&number) { Ok(number) } else { Err(QueryError::new(format!("`{key}` is from 1 to {most}"))) }
}
