//! What a repository's agent does with its mirror: finding out what services are at, and building that. All of this
//! blocks.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use weir_shared::commit_id::CommitId;

use super::mirror_slot::MirrorSlot;
use crate::commit_policy::{Policy, VerifyError};
use crate::config::LimitsConfig;
use crate::data_dir::DataDir;
use crate::disk_watch;
use crate::metrics::Metrics;
use crate::mirror::MirrorError;
use crate::publish::{Attempt, Candidate, PublishError, Publisher};
use crate::revision::{self, Reach, RevisionError, Tip};
use crate::service::Service;
use crate::source::git::tree::{GitTree, content_key};
use crate::store::Area;
use crate::tarball::{self, Base, BuildContext, Built, Limits, Recipe, TarballError};

/// How a build may use the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BuildOptions {
    pub(crate) limits: Limits,
    pub(crate) threads: usize,
    /// Room that the disk must have before a build begins.
    pub(crate) min_free_bytes: u64,
}

impl BuildOptions {
    /// As the configuration has it.
    pub(super) fn new(limits: &LimitsConfig) -> Self {
        Self { limits: limits.tarball(), threads: limits.build_threads, min_free_bytes: limits.min_free.as_u64() }
    }
}

/// Why a service is not at what its ref says.
#[derive(Debug, Clone)]
pub(super) struct ServiceFailure {
    /// `resolve`, `verify`, `select`, `lfs`, `build` or `store`.
    pub(super) step: &'static str,
    /// In plain words.
    pub(super) reason: String,
    pub(super) again: Again,
    /// How long a server asks to be left alone.
    pub(super) pause: Option<Duration>,
}

/// When the same content may do better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// With the next poll.
    Soon,
    /// It took all the time that it may, and may well do so again; or a server does not have what is needed.
    Later,
    /// Never: it is in the content, not in the machine.
    Never,
}

impl ServiceFailure {
    /// A failure that may be gone the next time.
    pub(super) fn passing(step: &'static str, reason: String) -> Self {
        Self { step, reason, again: Again::Soon, pause: None }
    }
}

impl From<MirrorError> for ServiceFailure {
    fn from(error: MirrorError) -> Self {
        Self::passing("resolve", error.to_string())
    }
}

impl From<PublishError> for ServiceFailure {
    fn from(error: PublishError) -> Self {
        let again = match error {
            PublishError::DescriptorTooLarge(_) | PublishError::Manifest(_) => Again::Never,
            PublishError::AttemptExpired(_) => Again::Later,
            _ => Again::Soon,
        };
        Self { again, ..Self::passing("store", error.to_string()) }
    }
}

/// What a tarball that cannot be made comes down to; an object that gave trouble is looked at, because the mirror may be
/// damaged.
pub(super) fn tarball_failure(mirror: &MirrorSlot, step: &'static str, error: &TarballError) -> ServiceFailure {
    // The mirror may be mended and the disk may get room; everything else is in the commit or in the configuration.
    let passing = match error {
        TarballError::Object { id, .. } => {
            mirror.lacks(id);
            true
        }
        TarballError::Malformed { id, .. } => mirror.lacks(id),
        TarballError::Lfs { .. } | TarballError::Write(_) | TarballError::Interrupted => true,
        _ => false,
    };
    let again = if passing { Again::Soon } else { Again::Never };
    ServiceFailure { again, ..ServiceFailure::passing(step, error.to_string()) }
}

pub(super) fn revision_failure(mirror: &MirrorSlot, error: &RevisionError) -> ServiceFailure {
    if matches!(error, RevisionError::Unreadable { .. }) {
        mirror.trouble(Instant::now());
    }
    ServiceFailure::passing("resolve", error.to_string())
}

/// Why what a service is at may not be published. What is published stays, also when it is that very commit: it came before
/// the policy, or its key has gone since.
fn verify_failure(mirror: &MirrorSlot, service: &Service, tip: &Tip, error: &VerifyError) -> ServiceFailure {
    if let VerifyError::Unreadable { object, .. } = error {
        mirror.lacks(&object.to_string());
    }
    let published = service.current().is_some_and(|current| current.publication().commit == tip.commit);
    let stays = if published { " (it was published before, and stays published)" } else { "" };
    ServiceFailure::passing("verify", format!("{error}{stays}"))
}

/// Where services are, for each that was looked at.
pub(super) type Resolved = Vec<(Arc<Service>, Result<Candidate, ServiceFailure>)>;

/// Finds out where the refs of services are, and the key of the content there.
pub(super) fn resolve(
    mirror: &MirrorSlot,
    reach: &Mutex<Reach>,
    services: &[Arc<Service>],
    policy: Option<&Policy>,
    stop: &AtomicBool,
) -> Result<Resolved, ServiceFailure> {
    let repository = mirror.get()?.repository()?.to_thread_local();
    let mut verifier = policy.map(|policy| policy.verifier(&repository, stop));
    let mut reach = reach.lock().unwrap_or_else(PoisonError::into_inner);
    let pinned: HashSet<_> = services.iter().filter_map(|service| service.revision.commit()).collect();
    if !pinned.is_empty() && reach.look(&repository, &pinned, stop).is_err() {
        // Each is looked for by itself then, and says what is wrong.
        *reach = Reach::default();
    }
    let mut look = |service: &Arc<Service>| -> Result<Candidate, ServiceFailure> {
        let tip = revision::tip(&repository, &service.revision, &mut reach, stop)
            .map_err(|error| revision_failure(mirror, &error))?;
        if let Some(verifier) = &mut verifier {
            verifier.check(&tip).map_err(|error| verify_failure(mirror, service, &tip, &error))?;
        }
        let commit = tip.commit;
        let key = content_key(&repository, &commit, &service.repository, &service.selection)
            .map_err(|error| tarball_failure(mirror, "select", &error))?;
        Ok(Candidate { service: service.clone(), commit, key })
    };
    Ok(services.iter().map(|service| (service.clone(), look(service))).collect())
}

/// What jobs work with.
pub(super) struct Builder {
    pub(super) mirror: Arc<MirrorSlot>,
    pub(super) publisher: Arc<Publisher>,
    pub(super) options: BuildOptions,
    pub(super) data_dir: DataDir,
    pub(super) metrics: Metrics,
}

impl Builder {
    /// Builds the content of a service at a commit, its frames through an attempt to publish it. `recipe`: that of a version
    /// to take frames from.
    pub(super) fn build(
        &self,
        service: &Service,
        commit: &CommitId,
        recipe: Option<Recipe>,
        attempt: &Attempt,
        runtime: &Handle,
        interrupt: &AtomicBool,
    ) -> Result<Built, ServiceFailure> {
        let BuildOptions { limits, threads, min_free_bytes } = self.options;
        disk_watch::require_room(&self.data_dir, min_free_bytes)
            .map_err(|reason| ServiceFailure::passing("store", reason))?;
        let (repository, selection) = (self.mirror.get()?.repository()?.to_thread_local(), &service.selection);
        let base = recipe.map(|recipe| self.base(service, recipe, runtime));
        let tree = GitTree { repository, commit, selection, lfs: Some(&self.mirror.lfs_objects()) };
        let context = BuildContext { limits: &limits, threads, base: base.as_ref(), interrupt };
        let built = tarball::build(&tree, selection, &context, attempt)
            .map_err(|error| tarball_failure(&self.mirror, "build", &error))?;
        let reused = built.reused_frames;
        self.metrics.frames.with_label_values(&["reused"]).inc_by(reused as u64);
        self.metrics.frames.with_label_values(&["built"]).inc_by(built.zstd.len().saturating_sub(reused) as u64);
        Ok(built)
    }

    fn base(&self, service: &Service, recipe: Recipe, runtime: &Handle) -> Base {
        let (objects, repository, runtime) =
            (self.publisher.objects().clone(), service.repository.clone(), runtime.clone());
        Base::new(recipe, move |digest| {
            runtime.block_on(objects.get(&repository, Area::Public, digest)).map_err(io::Error::other)
        })
    }
}
