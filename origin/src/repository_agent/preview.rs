//! What a service's tarball would hold, by what the mirror holds now. The mirror is only read, beside whatever the agent
//! does.

use std::time::Duration;

use weir_shared::commit_id::CommitId;

use super::build::{ServiceFailure, revision_failure, tarball_failure};
use super::handle::Handle;
use super::job::Job;
use crate::revision::{self, Revision};
use crate::tarball::{self, Limits, Listed, Listing, Selection};

/// How long a listing may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What is wanted of a preview.
pub(crate) struct Wanted {
    pub(crate) revision: Revision,
    pub(crate) selection: Selection,
    pub(crate) limits: Limits,
    /// Entries that are passed over.
    pub(crate) skip: u64,
    /// The most entries that are named after them.
    pub(crate) take: usize,
}

/// What a tarball would hold.
pub(crate) struct Preview {
    pub(crate) commit: CommitId,
    /// All of it.
    pub(crate) listing: Listing,
    /// The entries that were wanted.
    pub(crate) named: Vec<Listed>,
}

/// There is no preview.
#[derive(Debug)]
pub(crate) enum PreviewError {
    /// The repository has not been cloned yet.
    NotMirrored,
    /// Nothing could be published: where, and why.
    NotPublishable { step: &'static str, reason: String },
    /// It took too long, or the program has a fault.
    Failed,
}

impl Handle {
    /// What a tarball would hold. Whoever drops this ends it.
    pub(crate) async fn preview(&self, wanted: Wanted) -> Result<Preview, PreviewError> {
        if !self.mirror.exists() {
            return Err(PreviewError::NotMirrored);
        }
        let mirror = self.mirror.clone();
        let job = Job::begin("dry run", &self.threads, move |interrupt| -> Result<Preview, ServiceFailure> {
            let repository = mirror.get()?.repository()?.to_thread_local();
            let commit =
                revision::resolve(&repository, &wanted.revision).map_err(|error| revision_failure(&mirror, &error))?;
            let (mut seen, mut named) = (0, Vec::new());
            let listing =
                tarball::list(&repository, &commit, &wanted.selection, &wanted.limits, interrupt, &mut |listed| {
                    if seen >= wanted.skip && named.len() < wanted.take {
                        named.push(listed);
                    }
                    seen += 1;
                })
                .map_err(|error| tarball_failure(&mirror, "select", &error))?;
            Ok(Preview { commit, listing, named })
        });
        let job = job.map_err(|error| {
            tracing::warn!(%error, "no thread can be started for a dry run");
            PreviewError::Failed
        })?;
        match tokio::time::timeout(TIMEOUT, job).await {
            Ok(Ok(Ok(preview))) => Ok(preview),
            Ok(Ok(Err(failure))) => {
                Err(PreviewError::NotPublishable { step: failure.step, reason: self.mirror.redact(&failure.reason) })
            }
            Ok(Err(_)) | Err(_) => Err(PreviewError::Failed),
        }
    }
}
