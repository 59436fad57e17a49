//! Git: a mirror that follows an upstream, and the folders of its commits.
//!
//! [`tree`] makes contents of a commit. `resolve` finds out what services are at, `files` brings the LFS objects that their
//! contents need, `sweep` removes them again, and `upkeep` looks after the mirror.

mod commit_policy;
mod failures;
mod files;
pub mod lfs;
pub mod mirror;
mod mirror_slot;
mod resolve;
pub mod revision;
mod sweep;
pub mod tree;
mod upkeep;

#[cfg(feature = "fuzzing")]
pub use commit_policy::fuzz_signed_object;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use weir_protocol::commit_id::CommitId;
use weir_protocol::name::RepositoryName;

use self::lfs::LfsFile;
use self::mirror::{MaintenanceError, MirrorError};
use self::mirror_slot::MirrorSlot;
use self::revision::{Reach, further_refs};
use self::tree::{GitTree, lfs_files};
use super::{
    LfsFetchRequest, LfsFetchResult, ListRequest, ListTarget, MaintenanceRequest, PollFailure, PollOutcome,
    PollRequest, ResolvedServices, ServiceFailure, Source, SourceContext, Upstream,
};
use crate::config::RepositoryConfig;
use crate::service::Service;
use crate::tarball::{self, BuildContext, Built, FrameSink, ListedEntry, Listing};

/// The source of a repository of Git. A job that uses it keeps the data directory.
pub(crate) struct GitSource {
    repository: RepositoryName,
    mirror: MirrorSlot,
    /// Which commits that services name were found on a branch or a tag.
    reach: Mutex<Reach>,
    /// Bytes of LFS objects that have room, and may not be here yet.
    reserved: Mutex<u64>,
    shared: Arc<SourceContext>,
}

impl GitSource {
    pub(super) fn new(config: &RepositoryConfig, shared: Arc<SourceContext>) -> Self {
        let path = shared.data_dir.mirror(&config.name, config.url.as_str());
        let mirror = MirrorSlot::new(path, shared.upstreams.max_object.as_u64());
        Self { repository: config.name.clone(), mirror, reach: Mutex::default(), reserved: Mutex::default(), shared }
    }

    /// The mirror, to be read by one thread.
    fn open(&self) -> Result<gix::Repository, MirrorError> {
        Ok(self.mirror.get()?.repository()?.to_thread_local())
    }

    /// The upstream as it is to be asked now.
    fn upstream(&self, config: &RepositoryConfig) -> Upstream {
        self.shared.upstreams.upstream(config)
    }

    fn poll_mirror(&self, request: &PollRequest<'_>, stop: &AtomicBool) -> Result<mirror::Poll, MirrorError> {
        let further_refs = further_refs(request.services.iter().map(|service| &service.revision));
        let upstream = Upstream { further_refs, ..self.upstream(request.config) };
        let ready = self.mirror.for_poll(Instant::now())?;
        ready.set_aside.inspect(|damage| (request.on_set_aside)(damage));
        let memory = &self.shared.fetch_memory;
        let result = ready.mirror.poll_in_turn(&upstream, request.progress, memory, stop, request.may_fetch);
        match &result {
            Err(error @ MirrorError::OtherObjectFormat { .. }) => self.mirror.is_of_no_use(error.to_string()),
            Err(error) if error.may_be_damage() => self.mirror.trouble(Instant::now()),
            _ => {}
        }
        result
    }
}

impl Source for GitSource {
    fn poll(&self, request: &PollRequest<'_>, stop: &AtomicBool) -> Result<PollOutcome, PollFailure> {
        Ok(match self.poll_mirror(request, stop)? {
            mirror::Poll::Unchanged { .. } => PollOutcome::Unchanged,
            mirror::Poll::Changed { .. } => PollOutcome::Changed,
            mirror::Poll::Moved => PollOutcome::FetchPending,
        })
    }

    fn resolve(
        &self,
        config: &RepositoryConfig,
        services: &[Arc<Service>],
        stop: &AtomicBool,
    ) -> Result<ResolvedServices, ServiceFailure> {
        self.resolve_all(config, services, stop)
    }

    fn build(
        &self,
        service: &Service,
        commit: &CommitId,
        context: &BuildContext<'_>,
        sink: &dyn FrameSink,
    ) -> Result<Built, ServiceFailure> {
        let (repository, selection, lfs) = (self.open()?, &service.selection, self.mirror.lfs_objects());
        let tree = GitTree { repository, commit, selection, lfs: Some(&lfs) };
        tarball::build(&tree, selection, context, sink).map_err(|error| self.tarball_failure("build", &error))
    }

    fn list(
        &self,
        request: &ListRequest<'_>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(ListedEntry),
    ) -> Result<(CommitId, Listing), ServiceFailure> {
        let ListRequest { target, selection, limits } = *request;
        let repository = self.open()?;
        let found = match target {
            ListTarget::Revision(revision) => {
                revision::tip(&repository, revision, &mut Reach::default(), stop).map(|tip| tip.commit)
            }
            ListTarget::Commit(commit) => revision::look_up(&repository, commit).map(|_| commit.clone()),
        };
        let commit = found.map_err(|error| self.revision_failure(&error))?;
        let tree = GitTree { repository, commit: &commit, selection, lfs: None };
        let listing = tarball::list(&tree, selection, limits, stop, emit)
            .map_err(|error| self.tarball_failure("select", &error))?;
        Ok((commit, listing))
    }

    fn has_content(&self) -> bool {
        self.mirror.exists()
    }

    fn refs_changed_at(&self) -> Option<SystemTime> {
        self.mirror.refs_moved_at().ok()
    }

    fn missing_lfs_files(
        &self,
        service: &Service,
        commit: &CommitId,
        stop: &AtomicBool,
    ) -> Result<Vec<LfsFile>, ServiceFailure> {
        let mut files = lfs_files(&self.open()?, commit, &service.selection, &self.shared.limits, stop)
            .map_err(|error| self.tarball_failure("select", &error))?;
        let objects = self.mirror.lfs_objects();
        files.retain(|file| !objects.holds(&file.pointer));
        Ok(files)
    }

    fn fetch_lfs_files(
        &self,
        request: &LfsFetchRequest<'_>,
        stop: &AtomicBool,
    ) -> Result<LfsFetchResult, ServiceFailure> {
        self.fetch_files(request, stop)
    }

    fn maintain(&self, request: &MaintenanceRequest<'_>, stop: &AtomicBool) {
        self.keep_mirror_up(request, stop);
    }

    fn maintenance_failed(&self, reason: &str) {
        self.repack_failed(&MaintenanceError::Local(reason.to_owned()));
    }

    fn needs_check(&self) -> bool {
        self.mirror.gave_trouble()
    }

    fn check(&self, now: Instant, stop: &AtomicBool) {
        self.mirror.examine(now, stop);
    }

    fn suspect_damage(&self, now: Instant) {
        self.mirror.trouble(now);
    }

    fn needs_repair(&self, now: Instant) -> bool {
        self.mirror.wants_poll(now)
    }

    fn remove_other_mirrors(&self) {
        self.mirror.remove_others();
    }

    fn remove_all(&self) {
        self.mirror.remove_all();
    }
}
