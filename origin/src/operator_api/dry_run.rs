//! `POST /v1/services/{name}/dry-run`: lists the tarball that a service would publish now, for its stored definition
//! or for one in the request.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use ring::rand::SystemRandom;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_protocol::query::{self, QueryError};
use weir_protocol::revision_id::RevisionId;
use weir_runtime::admin;
use weir_runtime::bounds::Bounds;
use weir_runtime::serve::Body;
use weir_source::{ListTarget, PollFailure, Service, ServiceConfig};
use weir_tarball::{Limits, ListedEntry, ListedKind};

use super::problems::{self, SOON};
use crate::catalog::{Catalog, RawDocument, Snapshot, version};
use crate::config::LimitsConfig;
use crate::reconcile::{PreviewError, PreviewRequest, PreviewTarget};

/// Entries in a page by default.
const DEFAULT_LIMIT: usize = 1000;

/// The most entries in a page.
const MAX_LIMIT: usize = 10_000;

/// The most omissions that are listed; all are counted.
const MAX_OMITTED: usize = 1000;

/// The longest time of a dry run.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs dry runs, a few at a time. Clones are cheap.
#[derive(Clone)]
pub(super) struct DryRuns {
    catalog: Arc<Catalog>,
    slots: Arc<Semaphore>,
    limits: Limits,
    /// Signs cursors. Random for each process.
    key: [u8; blake3::KEY_LEN],
}

/// The requested page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    limit: usize,
    after: Option<Cursor>,
}

/// The end of the previous page.
#[derive(Debug, PartialEq, Eq)]
struct Cursor {
    /// The revision of the first page.
    revision: RevisionId,
    /// Entries in the previous pages.
    entries: u64,
    /// Proves that this process made the cursor for this document. The revision is read even if no ref leads to it any
    /// more.
    seal: blake3::Hash,
}

impl Cursor {
    fn new(key: &[u8; blake3::KEY_LEN], document: &ServiceConfig, revision: RevisionId, entries: u64) -> Self {
        let sealed = format!("{} {revision} {entries}", version(document));
        Self { revision, entries, seal: blake3::keyed_hash(key, sealed.as_bytes()) }
    }

    fn parse(text: &str) -> Option<Self> {
        // Revisions may have dots.
        let (rest, seal) = text.rsplit_once('.')?;
        let (revision, entries) = rest.rsplit_once('.')?;
        let seal = blake3::Hash::from_hex(seal).ok()?;
        Some(Self { revision: revision.parse().ok()?, entries: entries.parse().ok()?, seal })
    }

    /// Returns the cursor if its seal is valid for the document.
    fn checked(self, key: &[u8; blake3::KEY_LEN], document: &ServiceConfig) -> Option<Self> {
        let own = Self::new(key, document, self.revision.clone(), self.entries);
        // Hashes are compared in constant time.
        (own.seal == self.seal).then_some(self)
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.revision, self.entries, self.seal.to_hex())
    }
}

impl Part {
    pub(super) fn parse(query: Option<&str>) -> Result<Self, QueryError> {
        let mut part = Self { limit: DEFAULT_LIMIT, after: None };
        for (key, value) in query::pairs(query.unwrap_or_default())? {
            match key {
                "limit" => {
                    part.limit = query::parsed(key, &value)?;
                    if !(1..=MAX_LIMIT).contains(&part.limit) {
                        return Err(QueryError::new(format!("`limit` is from 1 to {MAX_LIMIT}")));
                    }
                }
                "page" => {
                    let after = Cursor::parse(&value);
                    part.after = Some(after.ok_or_else(|| QueryError::new("`page` is no `next_page` of a dry run"))?);
                }
                other => return Err(QueryError::unknown(other, "`limit` and `page`")),
            }
        }
        Ok(part)
    }
}

impl DryRuns {
    /// # Errors
    /// The system provides no random numbers.
    pub(super) fn new(catalog: Arc<Catalog>, limits: &LimitsConfig, bounds: &Bounds) -> anyhow::Result<Self> {
        let slots = bounds.semaphore("dry_runs", limits.concurrent_dry_runs);
        let random = ring::rand::generate(&SystemRandom::new());
        let key = random.map_err(|_| anyhow::anyhow!("the system provides no random numbers"))?.expose();
        Ok(Self { catalog, slots, limits: limits.tarball(), key })
    }

    /// Answers for the stored definition of a service, or for `document`.
    pub(super) async fn answer(
        &self,
        name: &ServiceName,
        document: Option<Arc<ServiceConfig>>,
        part: Part,
    ) -> Result<Response<Body>, Problem> {
        let snapshot = self.catalog.snapshot();
        let document = match document {
            Some(document) => document,
            None => defined(&snapshot, name)?,
        };
        let repository = document.home();
        let worker = snapshot.workers.get(repository);
        let worker = worker.ok_or_else(|| problems::no_such_repository(repository))?;
        let kind_of = |repository: &RepositoryName| snapshot.definitions.kind_of(repository);
        let service = Service::new(&document, kind_of, None);
        let service = Arc::new(service.map_err(|error| Problem::malformed(error.to_string()))?);
        let selection = service.selection.clone();
        let (at, skip) = match part.after {
            None => (None, 0),
            Some(cursor) => {
                let other =
                    "`page` is of another dry run, or the origin was restarted since: begin with the first page";
                let cursor = cursor.checked(&self.key, &document).ok_or_else(|| QueryError::new(other))?;
                (Some(cursor.revision), cursor.entries)
            }
        };
        let target = match at {
            at if !service.parts.is_empty() => PreviewTarget::Parts { service, at },
            None => PreviewTarget::Source(ListTarget::Followed(service.followed.clone())),
            Some(at) => PreviewTarget::Source(ListTarget::At(at)),
        };
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| problems::busy())?;
        let request = PreviewRequest { target, selection, limits: self.limits, skip, take: part.limit };
        let preview = worker.preview(request, slot, DEADLINE).await.map_err(|error| match error {
            PreviewError::NotMirrored(failure) => not_mirrored(repository, failure),
            PreviewError::NotPublishable { step, reason } => problems::not_publishable(name, step, &reason),
            PreviewError::TooSlow => too_slow(),
            PreviewError::Failed => problems::failed(()),
        })?;
        let listing = preview.listing;
        let named = skip + preview.entries.len() as u64;
        let next = || Cursor::new(&self.key, &document, preview.revision.clone(), named).to_string();
        let next_page = (named < listing.entries).then(next);
        let omitted: Vec<_> = listing.omitted.iter().take(MAX_OMITTED).collect();
        let mut answer = json!({
            "service": name,
            "repository": repository,
            "ref": document.followed_ref,
            "folder": document.folder,
            "commit": preview.revision.commit(),
            "revision_id": preview.revision,
            "entries_total": listing.entries,
            "file_bytes_total": listing.file_bytes,
            "omitted_total": listing.omitted.len(),
            "omitted": omitted,
            "entries": preview.entries.into_iter().map(entry).collect::<Vec<_>>(),
            "next_page": next_page,
        });
        if !document.parts.is_empty() {
            // Each part has its own.
            (answer["ref"], answer["folder"], answer["parts"]) = (Value::Null, Value::Null, json!(document.parts));
        }
        let mut response = admin::json(&answer);
        *response.status_mut() = StatusCode::OK;
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

fn entry(listed: ListedEntry) -> Value {
    let path = listed.path;
    match listed.kind {
        ListedKind::File { bytes, executable } => {
            json!({ "path": path, "kind": "file", "mode": if executable { "0755" } else { "0644" }, "bytes": bytes })
        }
        ListedKind::Directory => json!({ "path": path, "kind": "directory", "mode": "0755" }),
        ListedKind::Symlink(target) => json!({ "path": path, "kind": "symlink", "mode": "0777", "target": target }),
    }
}

/// The definition of a service.
fn defined(snapshot: &Snapshot, name: &ServiceName) -> Result<Arc<ServiceConfig>, Problem> {
    let defined = snapshot.definitions.services.get(name).ok_or_else(|| problems::no_such_service(name))?;
    match &defined.document {
        RawDocument::Valid(document) => Ok(document.clone()),
        RawDocument::Refused(refused) => Err(problems::not_publishable(name, "document", &refused.reason)),
    }
}

fn not_mirrored(repository: &RepositoryName, failure: Option<PollFailure>) -> Problem {
    let detail = match failure {
        None => format!("The first clone of repository `{repository}` is under way; its `status` says how far it is."),
        Some(PollFailure { step, reason, .. }) => {
            format!("Repository `{repository}` could not be cloned yet (step: {step}): {reason}. The origin retries.")
        }
    };
    let title = "The repository is not mirrored yet";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-mirrored", title, detail);
    problem.about("repository", repository).retry_after(SOON)
}

fn too_slow() -> Problem {
    let seconds = DEADLINE.as_secs();
    let detail = format!(
        "The dry run was stopped after {seconds} s: the folder or the history is large, or the origin is busy."
    );
    let title = "The dry run took too long";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "dry-run-too-slow", title, detail).retry_after(SOON)
}
