//! `POST /v1/services/{name}/dry-run`: what a service's tarball would hold now, of the service as it is or by a document
//! that is not stored.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use weir_shared::name::ServiceName;
use weir_shared::process::admin;
use weir_shared::process::serve::Body;
use weir_shared::query::{self, QueryError};

use super::error::OperatorError;
use crate::catalog::Catalog;
use crate::config::{LimitsConfig, ServiceConfig};
use crate::repository_agent::{PreviewError, Wanted};
use crate::revision::Revision;
use crate::tarball::{Limits, Listed, ListedKind};

/// The entries of a page, unless the request says how many.
const DEFAULT_LIMIT: usize = 1000;

/// The most entries of a page.
const MAX_LIMIT: usize = 10_000;

/// What is left out is named up to so many; all are counted.
const MAX_OMITTED: usize = 1000;

/// Makes dry runs, a few at a time. Cheap to clone.
#[derive(Clone)]
pub(super) struct DryRuns {
    catalog: Arc<Catalog>,
    places: Arc<Semaphore>,
    limits: Limits,
}

/// Which entries are asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    limit: usize,
    /// The commit of the pages before, and how many entries they named.
    after: Option<(Revision, u64)>,
}

impl Part {
    pub(super) fn parse(query: Option<&str>) -> Result<Self, QueryError> {
        let mut part = Self { limit: DEFAULT_LIMIT, after: None };
        for (key, value) in query::pairs(query.unwrap_or_default()) {
            match key {
                "limit" => {
                    part.limit = query::parsed(key, value)?;
                    if !(1..=MAX_LIMIT).contains(&part.limit) {
                        return Err(QueryError::new(format!("`limit` is from 1 to {MAX_LIMIT}")));
                    }
                }
                "page" => {
                    let after = value.split_once('.').and_then(|(commit, number)| {
                        Some((Revision::Commit(commit.parse().ok()?), number.parse().ok()?))
                    });
                    part.after = Some(after.ok_or_else(|| QueryError::new("`page` is no `next_page` of a dry run"))?);
                }
                other => return Err(QueryError::unknown(other, "`limit` and `page`")),
            }
        }
        Ok(part)
    }
}

impl DryRuns {
    pub(super) fn new(catalog: Arc<Catalog>, limits: &LimitsConfig) -> Self {
        let places = Arc::new(Semaphore::new(limits.concurrent_dry_runs));
        Self { catalog, places, limits: limits.tarball() }
    }

    /// Answers for a service as it is defined, or by a `document` that is not stored.
    pub(super) async fn answer(
        &self,
        name: &ServiceName,
        document: Option<Arc<ServiceConfig>>,
        part: Part,
    ) -> Result<Response<Body>, OperatorError> {
        let snapshot = self.catalog.snapshot();
        let defined = snapshot.definitions.services.get(name);
        let document = document.or_else(|| defined.map(|defined| defined.document.clone()));
        let document = document.ok_or_else(|| OperatorError::NoSuchService(name.clone()))?;
        let agent = snapshot.agents.get(&document.repository);
        let agent = agent.ok_or_else(|| OperatorError::NoSuchRepository(document.repository.clone()))?;
        let selection = document.selection().map_err(|error| OperatorError::Malformed(error.to_string()))?;
        let _place = self.places.try_acquire().map_err(|_| OperatorError::Busy)?;
        let (revision, skip) = part.after.unwrap_or((document.revision.clone(), 0));
        let wanted = Wanted { revision, selection, limits: self.limits, skip, take: part.limit };
        let preview = agent.preview(wanted).await.map_err(|error| match error {
            PreviewError::NotMirrored => OperatorError::NotMirrored(document.repository.clone()),
            PreviewError::NotPublishable { step, reason } => {
                OperatorError::NotPublishable { service: name.clone(), step, reason }
            }
            PreviewError::Failed => OperatorError::Failed,
        })?;
        let listing = preview.listing;
        let named = skip + preview.named.len() as u64;
        let next_page = (named < listing.entries).then(|| format!("{}.{named}", preview.commit));
        let omitted: Vec<_> = listing.omitted.iter().take(MAX_OMITTED).collect();
        let mut response = admin::json(&json!({
            "service": name,
            "repository": document.repository,
            "ref": document.revision.to_string(),
            "folder": document.folder,
            "commit": preview.commit,
            "entries_total": listing.entries,
            "file_bytes_total": listing.file_bytes,
            "omitted_total": listing.omitted.len(),
            "omitted": omitted,
            "entries": preview.named.into_iter().map(entry).collect::<Vec<_>>(),
            "next_page": next_page,
        }));
        *response.status_mut() = StatusCode::OK;
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

fn entry(listed: Listed) -> Value {
    let path = listed.path;
    match listed.kind {
        ListedKind::File { bytes, executable } => {
            json!({ "path": path, "kind": "file", "mode": if executable { "0755" } else { "0644" }, "bytes": bytes })
        }
        ListedKind::Directory => json!({ "path": path, "kind": "directory", "mode": "0755" }),
        ListedKind::Symlink(target) => json!({ "path": path, "kind": "symlink", "mode": "0777", "target": target }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_names_the_commit_so_that_pages_are_of_one() {
        let commit = "0123456789012345678901234567890123456789";
        let part = Part::parse(Some(&format!("limit=7&page={commit}.30"))).unwrap();
        assert_eq!(part, Part { limit: 7, after: Some((Revision::Commit(commit.parse().unwrap()), 30)) });
        for wrong in ["page=7", "page=main.3", &format!("page={commit}.x"), "limit=0", "limit=10001", "all=1"] {
            assert!(Part::parse(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
