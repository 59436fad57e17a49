//! What an agent asks of a source, of whatever kind. All of this blocks; where there is a `stop`, setting it ends that soon.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use weir_protocol::commit_id::CommitId;
use weir_protocol::name::ServiceName;

use super::{FetchProgress, PollFailure, ServiceFailure};
use crate::config::RepositoryConfig;
use crate::publish::{Candidate, PublishError};
use crate::service::Service;
use crate::source::git::lfs::{LfsFile, LfsOid};
use crate::source::git::revision::Revision;
use crate::tarball::{BuildContext, Built, FrameSink, Limits, Listed, Listing, Selection};

/// A kind of source, at work for one repository. What has a body here a kind need not have.
pub(crate) trait Kind: Send + Sync {
    /// Finds out what moved, and fetches it if it may.
    fn poll(&self, request: &PollRequest<'_>, stop: &AtomicBool) -> Result<Polled, PollFailure>;

    /// Finds out what services are at, by what is held, and the key of the content there. A failure in place of all: nothing
    /// could be looked at.
    fn resolve(
        &self,
        config: &RepositoryConfig,
        services: &[Arc<Service>],
        stop: &AtomicBool,
    ) -> Result<Resolved, ServiceFailure>;

    /// Builds the content of a service at a revision, which nothing is missing of.
    fn build(
        &self,
        service: &Service,
        commit: &CommitId,
        context: &BuildContext<'_>,
        sink: &dyn FrameSink,
    ) -> Result<Built, ServiceFailure>;

    /// What a tarball would hold, and of which revision, by what is held.
    fn list(
        &self,
        request: &ListRequest<'_>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(Listed),
    ) -> Result<(CommitId, Listing), ServiceFailure>;

    /// Whether anything is held that may be published without asking the upstream.
    fn holds_anything(&self) -> bool;

    /// When what is held last moved.
    fn moved_at(&self) -> Option<SystemTime> {
        None
    }

    /// What must be fetched before a service can be built at a revision.
    fn missing(&self, _: &Service, _: &CommitId, _: &AtomicBool) -> Result<Vec<LfsFile>, ServiceFailure> {
        Ok(Vec::new())
    }

    /// Fetches that, if there is room for it.
    fn fetch(&self, _: &NeededRequest<'_>, _: &AtomicBool) -> Result<Fetched, ServiceFailure> {
        Ok(Fetched::default())
    }

    /// Looks after what is held. How that went it counts and logs itself.
    fn keep_up(&self, _: &UpkeepRequest<'_>, _: &AtomicBool) {}

    /// Counts and logs that it could not.
    fn not_kept_up(&self, _reason: &str) {}

    /// Whether something failed that only a close look at what is held explains. Never waits for the disk.
    fn gave_trouble(&self) -> bool {
        false
    }

    /// Takes a close look.
    fn examine(&self, _now: Instant, _: &AtomicBool) {}

    /// Something failed that damage of what is held would explain.
    fn trouble(&self, _now: Instant) {}

    /// Whether a poll would mend what is held. Never waits for the disk.
    fn wants_poll(&self, _now: Instant) -> bool {
        false
    }

    /// Removes what was held of the same repository at other URLs, once this one holds what it should.
    fn remove_others(&self) {}

    /// Removes all that is held. Nobody may use it any more.
    fn remove_all(&self) {}
}

/// What services are at, for each that was looked at.
pub(crate) type Resolved = Vec<(Arc<Service>, Result<Candidate, ServiceFailure>)>;

/// The revisions of what is published of the repository and retained.
pub(crate) type Commits = Result<Vec<(ServiceName, CommitId)>, PublishError>;

/// A poll to be.
pub(crate) struct PollRequest<'a> {
    pub(crate) config: &'a RepositoryConfig,
    /// Those that it is for.
    pub(crate) services: &'a [Arc<Service>],
    /// Told how far it is.
    pub(crate) progress: &'a FetchProgress,
    /// Whether what moved may be fetched now: to find out is short, a fetch may be long.
    pub(crate) may_fetch: &'a dyn Fn() -> bool,
    /// Told when what was held is of no use and all is fetched anew, and why.
    pub(crate) set_aside: &'a dyn Fn(&str),
}

/// What a poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    /// Nothing moved.
    Unchanged,
    /// Something moved, and it is held now.
    Changed,
    /// Something moved, and it may not be fetched yet.
    Moved,
}

/// What is to be listed.
pub(crate) struct ListRequest<'a> {
    pub(crate) at: &'a At,
    pub(crate) selection: &'a Selection,
    pub(crate) limits: &'a Limits,
}

/// Which revision is looked at.
pub(crate) enum At {
    /// What a service would be at.
    Revision(Revision),
    /// One that was looked at before, whether anything leads to it still or not.
    Commit(CommitId),
}

/// What is to be fetched before a build.
pub(crate) struct NeededRequest<'a> {
    pub(crate) config: &'a RepositoryConfig,
    pub(crate) files: &'a [LfsFile],
    /// Whether what is held says what is needed: not while all is fetched anew.
    pub(crate) mirrored: bool,
    /// All services of the repository.
    pub(crate) services: &'a [Arc<Service>],
    pub(crate) published: &'a Commits,
    /// Asked before each request: how long it has to wait. `None`: it may go, and is counted.
    pub(crate) budget: &'a dyn Fn() -> Option<Duration>,
    /// Whether anybody wants it still.
    pub(crate) wanted: &'a dyn Fn(&LfsOid) -> bool,
}

/// How that went.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    /// Objects that came.
    pub(crate) brought: usize,
    /// Why objects did not come, each reason once.
    pub(crate) failures: Vec<String>,
    /// How long the server asks to be left alone.
    pub(crate) pause: Option<Duration>,
    pub(crate) interrupted: bool,
}

/// What to look after.
pub(crate) struct UpkeepRequest<'a> {
    pub(crate) published: &'a Commits,
    /// All services of the repository, if it is time to remove what none of them needs.
    pub(crate) sweep: Option<&'a [Arc<Service>]>,
}

impl Fetched {
    pub(crate) fn fail(&mut self, reason: String) {
        if !self.failures.contains(&reason) {
            self.failures.push(reason);
        }
    }
}
