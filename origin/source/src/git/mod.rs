//! Git sources: what services need of a mirror of Git.
//!
//! `weir-git` has the mirror and what it contains. Here `resolve` looks up the commits of services, `lfs_fetch` downloads the
//! LFS objects that their contents need, `lfs_gc` removes unneeded ones, and `maintenance` repacks the mirror.

mod failures;
mod lfs_fetch;
mod lfs_gc;
mod maintenance;
mod requests;
mod resolve;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use gix::bstr::{BString, ByteSlice};
use weir_git::MirrorHandle;
use weir_git::bundles::{BundleError, BundleRequest, Bundled, HydrateRequest};
use weir_git::lfs::LfsFile;
use weir_git::mirror::{self, MaintenanceError, MirrorError};
use weir_git::revision::{self, ReachabilityCache, Revision};
use weir_git::tree::{GitTree, lfs_files};
use weir_protocol::name::RepositoryName;
use weir_protocol::revision_id::RevisionId;
use weir_tarball::{BuildContext, Built, FrameSink, ListedEntry, Listing};
use weir_upstream::{RepositoryConfig, Upstream, free_disk};

pub use self::requests::{LfsFetchRequest, LfsFetchResult, MaintenanceRequest};
use super::{
    LeftOutRef, ListRequest, ListTarget, PollFailure, PollOutcome, PollRequest, RevisionLookup, ServiceFailure,
    SourceContext,
};
use crate::Service;

/// A Git repository as a source. A job that uses it keeps the data directory locked.
pub struct GitSource {
    repository: RepositoryName,
    /// What needs no service.
    pub mirror: MirrorHandle,
    /// Which pinned commits are reachable from a branch or a tag.
    reachability: Mutex<ReachabilityCache>,
    /// Bytes of disk reserved for LFS objects that are being fetched.
    reserved_lfs_bytes: Mutex<u64>,
    /// When the last poll began after which the mirror was at the upstream's refs. Before the first one, it may be older than
    /// what is published: it was made from bundles, or another origin has owned the repository since.
    polled_at: Mutex<Option<Instant>>,
    shared: Arc<SourceContext>,
}

impl GitSource {
    pub(super) fn new(config: &RepositoryConfig, shared: Arc<SourceContext>) -> Self {
        let path = shared.data_dir.mirror(&config.name, config.url.as_str());
        let mirror = MirrorHandle::new(path, shared.upstreams.max_object.as_u64());
        let (reachability, reserved_lfs_bytes, polled_at) = Default::default();
        Self { repository: config.name.clone(), mirror, reachability, reserved_lfs_bytes, polled_at, shared }
    }

    /// Opens the mirror for reading by one thread.
    fn open(&self) -> Result<gix::Repository, MirrorError> {
        Ok(self.mirror.get()?.repository()?.to_thread_local())
    }

    /// The upstream with the current settings.
    fn upstream(&self, config: &RepositoryConfig) -> Upstream {
        Upstream::of(config, &self.shared.upstreams, self.shared.clocks.clone())
    }

    fn polled_at(&self) -> Option<Instant> {
        *self.polled_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_mirror(&self, request: &PollRequest<'_>, stop: &AtomicBool) -> Result<mirror::Poll, MirrorError> {
        let revisions = request.services.iter().filter_map(|service| service.followed.revision().cloned()).collect();
        let upstream = self.upstream(request.config);
        let ready = self.mirror.for_poll(Instant::now())?;
        ready.replaced.inspect(|damage| (request.on_mirror_replaced)(damage));
        let memory = &self.shared.fetch_memory;
        let result = ready.mirror.poll_with(&upstream, &revisions, request.progress, memory, stop, request.may_fetch);
        match &result {
            Err(error @ MirrorError::OtherObjectFormat { .. }) => self.mirror.mark_unusable(error.to_string()),
            Err(error) if error.may_be_damage() => self.mirror.mark_suspect(Instant::now()),
            _ => {}
        }
        result
    }
}

/// What a source of any kind can do, and what only a mirror can. See [`Source`](super::Source) and `requests`.
impl GitSource {
    pub(crate) fn poll(&self, request: &PollRequest<'_>, stop: &AtomicBool) -> Result<PollOutcome, PollFailure> {
        let started = Instant::now();
        let polled = self.poll_mirror(request, stop);
        if let Ok(mirror::Poll::Unchanged { .. } | mirror::Poll::Changed { .. }) = &polled {
            *self.polled_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        }
        Ok(match polled? {
            mirror::Poll::Unchanged { .. } => PollOutcome::Unchanged,
            mirror::Poll::Changed { .. } => PollOutcome::Changed,
            mirror::Poll::Deferred => PollOutcome::FetchPending,
        })
    }

    pub(crate) fn left_out(&self, services: &[Arc<Service>]) -> Vec<LeftOutRef> {
        let left_out = self.mirror.get().map(|mirror| mirror.left_out()).unwrap_or_default();
        let follows = |name: &str| {
            services.iter().filter_map(|service| service.followed.revision()).any(|revision| revision.follows(name))
        };
        let describe = |(name, error): (BString, MirrorError)| LeftOutRef {
            name: mirror::display_name(name.as_bstr()),
            is_followed: name.to_str().is_ok_and(follows),
            failure: error.into(),
        };
        left_out.into_iter().map(describe).collect()
    }

    pub(crate) fn build(
        &self,
        service: &Service,
        revision: &RevisionId,
        context: &BuildContext<'_>,
        sink: &dyn FrameSink,
    ) -> Result<Built, ServiceFailure> {
        let commit = Self::commit_of(revision)?;
        let (repository, selection, lfs) = (self.open()?, &service.selection, self.mirror.lfs_objects());
        let tree = GitTree { repository, commit, selection, lfs: Some(&lfs) };
        weir_tarball::build(&tree, selection, context, sink).map_err(|error| self.tarball_failure("build", &error))
    }

    /// The contents of a service at a revision, without LFS files.
    pub(super) fn tree<'a>(&self, service: &'a Service, revision: &RevisionId) -> Result<GitTree<'a>, ServiceFailure> {
        let commit = Self::commit_of(revision)?;
        Ok(GitTree { repository: self.open()?, commit, selection: &service.selection, lfs: None })
    }

    pub(crate) fn list(
        &self,
        request: &ListRequest<'_>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(ListedEntry),
    ) -> Result<(RevisionId, Listing), ServiceFailure> {
        let ListRequest { target, selection, limits } = *request;
        let repository = self.open()?;
        let found = match target {
            ListTarget::Followed(followed) => {
                revision::tip(&repository, Self::revision_of(followed)?, &mut ReachabilityCache::default(), stop)
                    .map(|tip| tip.commit)
            }
            ListTarget::At(revision) => {
                let commit = Self::commit_of(revision)?;
                revision::find_commit(&repository, &commit).map(|_| commit)
            }
        };
        let commit = found.map_err(|error| self.revision_failure(&error))?;
        let tree = GitTree { repository, commit: commit.clone(), selection, lfs: None };
        let listing = weir_tarball::list(&tree, selection, limits, stop, emit)
            .map_err(|error| self.tarball_failure("select", &error))?;
        Ok((RevisionId::from(&commit), listing))
    }

    /// What is called like a revision in the mirror: a tag, or a commit by its id or the beginning of it.
    pub(crate) fn find_revision(&self, name: &str) -> RevisionLookup {
        let Ok(mirror) = self.open() else { return RevisionLookup::Unknown };
        if let Ok(commit) = revision::resolve(&mirror, &Revision::Named(format!("refs/tags/{name}"))) {
            return RevisionLookup::Tag(RevisionId::from(&commit));
        }
        match revision::has_commit(&mirror, name.rsplit(':').next().unwrap_or_default()) {
            Some(true) => RevisionLookup::Commit,
            Some(false) => RevisionLookup::Nothing,
            None => RevisionLookup::Unknown,
        }
    }

    /// The LFS files that must be fetched before a service can be built at a revision.
    pub fn missing_lfs_files(
        &self,
        service: &Service,
        revision: &RevisionId,
        stop: &AtomicBool,
    ) -> Result<Vec<LfsFile>, ServiceFailure> {
        let commit = Self::commit_of(revision)?;
        let mut files = lfs_files(&self.open()?, &commit, &service.selection, &self.shared.limits, stop)
            .map_err(|error| self.tarball_failure("select", &error))?;
        let objects = self.mirror.lfs_objects();
        files.retain(|file| !objects.contains(&file.pointer));
        Ok(files)
    }

    /// Counts and logs that maintenance could not run.
    pub fn maintenance_failed(&self, reason: &str) {
        self.repack_failed(&MaintenanceError::Local(reason.to_owned()));
    }

    /// Writes a bundle of the mirror, if one is due.
    pub fn bundle_mirror(&self, request: &BundleRequest<'_>, stop: &AtomicBool) -> Result<Bundled, BundleError> {
        let require_room = |bytes| self.require_room(bytes);
        self.mirror.write_bundle(request, self.shared.upstreams.max_refs, &require_room, stop)
    }

    /// Makes the mirror from stored bundles, or takes in newer ones. Returns how many.
    pub fn hydrate_mirror(&self, request: &HydrateRequest<'_>, stop: &AtomicBool) -> Result<usize, BundleError> {
        self.mirror.hydrate(request, &self.upstream(request.config), &self.shared.fetch_memory, stop)
    }

    /// Fails if the disk has no room for so many bytes.
    fn require_room(&self, bytes: u64) -> Result<(), String> {
        free_disk::require_room(&self.shared.data_dir, self.shared.min_free.saturating_add(bytes))
    }
}
