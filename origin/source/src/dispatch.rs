//! A source of any kind.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use weir_protocol::revision_id::RevisionId;
use weir_tarball::{BuildContext, Built, FrameSink, ListedEntry, Listing, TarballError};
use weir_upstream::{RepositoryConfig, SourceKind};

use super::artifact::ArtifactSource;
use super::git::GitSource;
use super::{
    LeftOutRef, ListRequest, PollFailure, PollOutcome, PollRequest, ResolvedServices, RevisionLookup, ServiceFailure,
    SourceContext, Tree,
};
use crate::Service;

/// Follows the upstream of one repository and stores its content. All methods block. Where there is a `stop`, setting it
/// ends the method soon.
pub struct Source(Kind);

enum Kind {
    Git(Box<GitSource>),
    Artifacts(Box<ArtifactSource>),
}

impl Source {
    /// The source of a repository. It opens no file yet.
    pub fn open(config: &RepositoryConfig, shared: Arc<SourceContext>) -> Self {
        Self(match config.kind {
            SourceKind::Git => Kind::Git(Box::new(GitSource::new(config, shared))),
            SourceKind::Helm | SourceKind::Oci => Kind::Artifacts(Box::new(ArtifactSource::new(config, shared))),
        })
    }

    /// Queries the upstream for changes, and fetches them if it may.
    pub fn poll(&self, request: &PollRequest<'_>, stop: &AtomicBool) -> Result<PollOutcome, PollFailure> {
        match &self.0 {
            Kind::Git(git) => git.poll(request, stop),
            Kind::Artifacts(artifacts) => artifacts.poll(request, stop),
        }
    }

    /// The refs and versions that the last poll left out.
    pub fn left_out(&self, services: &[Arc<Service>]) -> Vec<LeftOutRef> {
        match &self.0 {
            Kind::Git(git) => git.left_out(services),
            Kind::Artifacts(artifacts) => artifacts.left_out(),
        }
    }

    /// Resolves the revision of each service in the stored content, and the key of its tarball. An `Err` applies to all
    /// services.
    pub fn resolve(
        &self,
        config: &RepositoryConfig,
        services: &[Arc<Service>],
        stop: &AtomicBool,
    ) -> Result<ResolvedServices, ServiceFailure> {
        match &self.0 {
            Kind::Git(git) => git.resolve(config, services, stop),
            Kind::Artifacts(artifacts) => Ok(artifacts.resolve(config, services)),
        }
    }

    /// Builds the tarball of a service at a revision. What it needs must be stored.
    pub fn build(
        &self,
        service: &Service,
        revision: &RevisionId,
        context: &BuildContext<'_>,
        sink: &dyn FrameSink,
    ) -> Result<Built, ServiceFailure> {
        match &self.0 {
            Kind::Git(git) => git.build(service, revision, context, sink),
            Kind::Artifacts(artifacts) => artifacts.build(service, revision, context, sink),
        }
    }

    /// The contents of a service at a revision. What it needs must be stored; LFS files are left out.
    pub fn tree<'a>(&self, service: &'a Service, revision: &RevisionId) -> Result<Tree<'a>, ServiceFailure> {
        match &self.0 {
            Kind::Git(git) => git.tree(service, revision).map(Tree::from),
            Kind::Artifacts(artifacts) => artifacts.tree(service, revision).map(Tree::from),
        }
    }

    /// The failure of a step that a tarball's error means. What it says about the stored content is recorded.
    pub fn failure(&self, revision: &RevisionId, step: &'static str, error: &TarballError) -> ServiceFailure {
        match &self.0 {
            Kind::Git(git) => git.tarball_failure(step, error),
            Kind::Artifacts(artifacts) => artifacts.failure(revision, step, error),
        }
    }

    /// Lists what a tarball would contain. Returns the revision, too.
    pub fn list(
        &self,
        request: &ListRequest<'_>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(ListedEntry),
    ) -> Result<(RevisionId, Listing), ServiceFailure> {
        match &self.0 {
            Kind::Git(git) => git.list(request, stop, emit),
            Kind::Artifacts(artifacts) => artifacts.list(request, stop, emit),
        }
    }

    /// What is called like a revision in what is stored. Blocks.
    pub fn find_revision(&self, name: &str) -> RevisionLookup {
        match &self.0 {
            Kind::Git(git) => git.find_revision(name),
            Kind::Artifacts(_) => RevisionLookup::Nothing,
        }
    }

    /// Whether anything is stored that may be published without querying the upstream.
    pub fn has_content(&self) -> bool {
        match &self.0 {
            Kind::Git(git) => git.mirror.exists(),
            Kind::Artifacts(artifacts) => artifacts.has_content(),
        }
    }

    /// Whether a poll is needed before its time: to repair the stored content, for example. Never waits for the disk.
    pub fn needs_poll(&self, now: Instant) -> bool {
        match &self.0 {
            Kind::Git(git) => git.mirror.needs_poll(now),
            Kind::Artifacts(artifacts) => artifacts.needs_poll(),
        }
    }

    /// Ends the back-offs of parts of the upstream.
    pub fn reset_back_offs(&self) {
        match &self.0 {
            Kind::Git(_) => {}
            Kind::Artifacts(artifacts) => artifacts.reset_back_offs(),
        }
    }

    /// Removes the content of the same repository at other URLs. Called once this content is complete.
    pub fn remove_siblings(&self) {
        match &self.0 {
            Kind::Git(git) => git.mirror.remove_siblings(),
            Kind::Artifacts(artifacts) => artifacts.remove_siblings(),
        }
    }

    /// Removes all stored content. Nothing may use it any more.
    pub fn remove_all(&self) {
        match &self.0 {
            Kind::Git(git) => git.mirror.remove_all(),
            Kind::Artifacts(artifacts) => artifacts.remove_all(),
        }
    }

    /// What only a mirror of Git can do. `None`: the source is of another kind.
    pub fn mirror(&self) -> Option<&GitSource> {
        match &self.0 {
            Kind::Git(git) => Some(git.as_ref()),
            Kind::Artifacts(_) => None,
        }
    }
}
