//! A local folder, `folder:///srv/site`: the second kind of source, for tests. It stores nothing. Its revision is the hash of
//! its content, and content that changed after it was resolved is not built.

mod tree;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicBool};

use weir_protocol::revision_id::RevisionId;

pub use self::tree::{DiskFile, FolderTree};
use super::{ListRequest, ListTarget, PollFailure, PollOutcome, PollRequest, ResolvedServices, ServiceFailure, Source};
use crate::config::RepositoryConfig;
use crate::publish::Candidate;
use crate::service::Service;
use crate::source::git::revision::Revision;
use crate::tarball::{self, BuildContext, Built, ContentKey, FrameSink, ListedEntry, Listing, TarballError};

/// The source of a repository that is a folder.
pub(crate) struct FolderSource {
    root: PathBuf,
    /// The revision at the last poll.
    last_revision: Mutex<Option<RevisionId>>,
}

impl FolderSource {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), last_revision: Mutex::default() }
    }

    /// Reads the folder, and checks that it is at a revision.
    fn read_at(&self, wanted: Option<&RevisionId>) -> Result<(FolderTree, RevisionId), ServiceFailure> {
        let tree = FolderTree::read(&self.root).map_err(failed("resolve"))?;
        let now = tree.revision();
        match wanted.filter(|wanted| **wanted != now) {
            Some(other) => Err(other_revision(&now, other)),
            None => Ok((tree, now)),
        }
    }
}

fn other_revision(now: &RevisionId, wanted: &dyn std::fmt::Display) -> ServiceFailure {
    ServiceFailure::transient("resolve", format!("the folder is at `{now}`, not at `{wanted}`"))
}

fn failed(step: &'static str) -> impl Fn(TarballError) -> ServiceFailure {
    move |error| ServiceFailure::transient(step, error.to_string())
}

impl Source for FolderSource {
    fn poll(&self, _: &PollRequest<'_>, _: &AtomicBool) -> Result<PollOutcome, PollFailure> {
        let (_, now) = self.read_at(None).map_err(|failure| PollFailure {
            step: "list refs",
            reason: failure.reason,
            kind: "local",
            timeout: false,
            retry_after: None,
        })?;
        let before = self.last_revision.lock().unwrap_or_else(PoisonError::into_inner).replace(now.clone());
        Ok(if before == Some(now) { PollOutcome::Unchanged } else { PollOutcome::Changed })
    }

    fn resolve(
        &self,
        config: &RepositoryConfig,
        services: &[Arc<Service>],
        _: &AtomicBool,
    ) -> Result<ResolvedServices, ServiceFailure> {
        if config.verify.is_some() {
            return Err(ServiceFailure::transient("verify", "a folder has no signatures".to_owned()));
        }
        let (tree, now) = self.read_at(None)?;
        let resolve = |service: &Arc<Service>| {
            if service.revision != Revision::DefaultBranch {
                return Err(other_revision(&now, &service.revision));
            }
            let identity = tree.below(&service.selection.folder).map_err(failed("select"))?.identity();
            let key = ContentKey::new(&service.repository, &service.selection, |key| key.field(&identity));
            Ok(Candidate { service: service.clone(), revision: now.clone(), version: None, key })
        };
        Ok(services.iter().map(|service| (service.clone(), resolve(service))).collect())
    }

    fn build(
        &self,
        Service { selection, .. }: &Service,
        revision: &RevisionId,
        context: &BuildContext<'_>,
        sink: &dyn FrameSink,
    ) -> Result<Built, ServiceFailure> {
        let (tree, _) = self.read_at(Some(revision))?;
        let tree = tree.below(&selection.folder).map_err(failed("select"))?;
        tarball::build(&tree, selection, context, sink).map_err(failed("build"))
    }

    fn list(
        &self,
        ListRequest { target, selection, limits }: &ListRequest<'_>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(ListedEntry),
    ) -> Result<(RevisionId, Listing), ServiceFailure> {
        let (tree, now) = match target {
            ListTarget::Revision(Revision::DefaultBranch) => self.read_at(None)?,
            ListTarget::Revision(other) => return Err(other_revision(&self.read_at(None)?.1, other)),
            ListTarget::At(revision) => self.read_at(Some(revision))?,
        };
        let tree = tree.below(&selection.folder).map_err(failed("select"))?;
        Ok((now, tarball::list(&tree, selection, limits, stop, emit).map_err(failed("select"))?))
    }

    fn has_content(&self) -> bool {
        self.root.is_dir()
    }
}
