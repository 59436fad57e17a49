//! A folder on this disk, `folder:///srv/site`: the second kind, for tests. It holds nothing; its revision is the hash of all
//! that is in it, and what has changed since it was looked at is not built.

mod tree;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicBool};

use weir_protocol::commit_id::CommitId;

pub use self::tree::{DiskFile, FolderTree};
use super::{At, Kind, ListRequest, PollFailure, PollRequest, Polled, Resolved, ServiceFailure};
use crate::config::RepositoryConfig;
use crate::publish::Candidate;
use crate::service::Service;
use crate::source::git::revision::Revision;
use crate::tarball::{self, BuildContext, Built, ContentKey, FrameSink, Listed, Listing, TarballError};

/// The source of a repository that is a folder.
pub(crate) struct FolderSource {
    root: PathBuf,
    /// What the last poll found.
    seen: Mutex<Option<CommitId>>,
}

impl FolderSource {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), seen: Mutex::default() }
    }

    /// The folder and what it is at, if that is what is wanted.
    fn at(&self, wanted: &Revision) -> Result<(FolderTree, CommitId), ServiceFailure> {
        let tree = FolderTree::read(&self.root).map_err(failed("resolve"))?;
        let now = tree.revision();
        check(wanted, &now)?;
        Ok((tree, now))
    }
}

fn check(wanted: &Revision, now: &CommitId) -> Result<(), ServiceFailure> {
    match wanted {
        Revision::DefaultBranch => Ok(()),
        Revision::Commit(commit) if commit == now => Ok(()),
        other => Err(ServiceFailure::passing("resolve", format!("the folder is at `{now}` alone, not at `{other}`"))),
    }
}

fn failed(step: &'static str) -> impl Fn(TarballError) -> ServiceFailure {
    move |error| ServiceFailure::passing(step, error.to_string())
}

impl Kind for FolderSource {
    fn poll(&self, _: &PollRequest<'_>, _: &AtomicBool) -> Result<Polled, PollFailure> {
        let (_, now) = self.at(&Revision::DefaultBranch).map_err(|failure| PollFailure {
            step: "list refs",
            reason: failure.reason,
            kind: "local",
            timeout: false,
            retry_after: None,
            all_but_a_ref: None,
        })?;
        let before = self.seen.lock().unwrap_or_else(PoisonError::into_inner).replace(now.clone());
        Ok(if before == Some(now) { Polled::Unchanged } else { Polled::Changed })
    }

    fn resolve(
        &self,
        config: &RepositoryConfig,
        services: &[Arc<Service>],
        _: &AtomicBool,
    ) -> Result<Resolved, ServiceFailure> {
        if config.verify.is_some() {
            return Err(ServiceFailure::passing("verify", "nobody signs a folder".to_owned()));
        }
        let (tree, now) = self.at(&Revision::DefaultBranch)?;
        let look = |service: &Arc<Service>| {
            check(&service.revision, &now)?;
            let identity = tree.below(&service.selection.folder).map_err(failed("select"))?.identity();
            let key = ContentKey::new(&service.repository, &service.selection, |key| key.field(&identity));
            Ok(Candidate { service: service.clone(), commit: now.clone(), key })
        };
        Ok(services.iter().map(|service| (service.clone(), look(service))).collect())
    }

    fn build(
        &self,
        Service { selection, .. }: &Service,
        commit: &CommitId,
        context: &BuildContext<'_>,
        sink: &dyn FrameSink,
    ) -> Result<Built, ServiceFailure> {
        let (tree, _) = self.at(&Revision::Commit(commit.clone()))?;
        let tree = tree.below(&selection.folder).map_err(failed("select"))?;
        tarball::build(&tree, selection, context, sink).map_err(failed("build"))
    }

    fn list(
        &self,
        ListRequest { at, selection, limits }: &ListRequest<'_>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(Listed),
    ) -> Result<(CommitId, Listing), ServiceFailure> {
        let (tree, now) = match at {
            At::Revision(revision) => self.at(revision)?,
            At::Commit(commit) => self.at(&Revision::Commit(commit.clone()))?,
        };
        let tree = tree.below(&selection.folder).map_err(failed("select"))?;
        Ok((now, tarball::list(&tree, selection, limits, stop, emit).map_err(failed("select"))?))
    }

    fn holds_anything(&self) -> bool {
        self.root.is_dir()
    }
}
