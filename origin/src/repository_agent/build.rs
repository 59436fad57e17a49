//! What a repository's agent does with its mirror: finding out what services are at, and building that. All of this
//! blocks.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use weir_shared::commit_id::CommitId;
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::encoding::Encoding;

use super::mirror_slot::MirrorSlot;
use crate::blob_store::TemporaryBlob;
use crate::commit_policy::{Policy, VerifyError};
use crate::config::LimitsConfig;
use crate::metrics::Metrics;
use crate::mirror::MirrorError;
use crate::publication::{Content, Reference, StateError};
use crate::publisher::{PublishError, Publisher, Sighting};
use crate::revision::{self, Reach, RevisionError, Tip};
use crate::service::Service;
use crate::tarball::{self, Earlier, FragmentIndex, Limits, Means, TarballError};

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
}

/// When the same content may do better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// With the next poll.
    Soon,
    /// It took all the time that it may, and may well do so again.
    Later,
    /// Never: it is in the content, not in the machine.
    Never,
}

impl ServiceFailure {
    /// A failure that may be gone the next time.
    pub(super) fn passing(step: &'static str, reason: String) -> Self {
        Self { step, reason, again: Again::Soon }
    }
}

impl From<MirrorError> for ServiceFailure {
    fn from(error: MirrorError) -> Self {
        Self::passing("resolve", error.to_string())
    }
}

impl From<StateError> for ServiceFailure {
    fn from(error: StateError) -> Self {
        Self::passing("store", error.to_string())
    }
}

impl From<PublishError> for ServiceFailure {
    fn from(error: PublishError) -> Self {
        let again = match error {
            PublishError::State(StateError::DescriptorTooLarge(_)) => Again::Never,
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
    ServiceFailure { step, reason: error.to_string(), again: if passing { Again::Soon } else { Again::Never } }
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

/// What a look at a service found.
#[derive(Debug)]
pub(super) enum Found {
    /// This is published, now or since before, or would be if the service were not pinned.
    Settled(CommitId),
    /// This must be built.
    ToBuild(Sighting),
}

/// What a look at services found, for each that was looked at.
pub(super) type Survey = Vec<(Arc<Service>, Result<Found, ServiceFailure>)>;

/// Looks at services: where their refs are, and whether the content there is published or was built before.
pub(super) fn survey(
    mirror: &MirrorSlot,
    publisher: &Publisher,
    reach: &Mutex<Reach>,
    services: &[Arc<Service>],
    policy: Option<&Policy>,
    stop: &AtomicBool,
) -> Result<Survey, ServiceFailure> {
    let repository = mirror.get()?.repository()?.to_thread_local();
    let mut verifier = policy.map(|policy| policy.verifier(&repository, stop));
    let mut reach = reach.lock().unwrap_or_else(PoisonError::into_inner);
    let pinned: HashSet<_> = services.iter().filter_map(|service| service.revision.commit()).collect();
    if !pinned.is_empty() && reach.look(&repository, &pinned, stop).is_err() {
        // Each is looked for by itself then, and says what is wrong.
        *reach = Reach::default();
    }
    let mut look = |service: &Arc<Service>| -> Result<Sighting, ServiceFailure> {
        let tip = revision::tip(&repository, &service.revision, &mut reach, stop)
            .map_err(|error| revision_failure(mirror, &error))?;
        if let Some(verifier) = &mut verifier {
            verifier.check(&tip).map_err(|error| verify_failure(mirror, service, &tip, &error))?;
        }
        let commit = tip.commit;
        let key = tarball::content_key(&repository, &commit, &service.repository, &service.selection)
            .map_err(|error| tarball_failure(mirror, "select", &error))?;
        Ok(Sighting { service: service.clone(), commit, key })
    };
    let mut survey = Survey::new();
    let mut sightings = Vec::new();
    for service in services {
        match look(service) {
            Ok(sighting) => sightings.push(sighting),
            Err(failure) => survey.push((service.clone(), Err(failure))),
        }
    }
    let settled = publisher.settle_known(&sightings, SystemTime::now())?;
    for (sighting, settled) in sightings.into_iter().zip(settled) {
        let service = sighting.service.clone();
        let found = if settled { Found::Settled(sighting.commit) } else { Found::ToBuild(sighting) };
        survey.push((service, Ok(found)));
    }
    Ok(survey)
}

/// What was built and is not stored yet.
struct Made<'a> {
    content: Content,
    blob: TemporaryBlob<'a>,
    fragments: FragmentIndex,
}

/// What a build works with.
pub(super) struct Workshop {
    pub(super) mirror: Arc<MirrorSlot>,
    pub(super) publisher: Arc<Publisher>,
    pub(super) options: BuildOptions,
    pub(super) metrics: Metrics,
}

impl Workshop {
    /// Builds the content of a service where it was seen, and publishes it.
    pub(super) fn build(&self, seen: &Sighting, interrupt: &AtomicBool) -> Result<(), ServiceFailure> {
        let repository = self.mirror.get()?.repository()?;
        let Made { content, blob, fragments } = self.make(&repository, &seen.service, &seen.commit, interrupt)?;
        let stored = content.blob;
        self.publisher.settle_built(&seen.service, &seen.commit, &seen.key, content, blob, SystemTime::now())?;
        self.remember_fragments(&stored, &fragments);
        Ok(())
    }

    /// Builds again what a descriptor states, from its own commit. False: what comes out is another content (the
    /// service was configured differently then).
    pub(super) fn rebuild(
        &self,
        service: &Service,
        stated: &Reference,
        interrupt: &AtomicBool,
    ) -> Result<bool, ServiceFailure> {
        let publication = stated.descriptor.publication();
        let repository = self.mirror.get()?.repository()?;
        let local = repository.to_thread_local();
        let key = tarball::content_key(&local, &publication.commit, &service.repository, &service.selection)
            .map_err(|error| tarball_failure(&self.mirror, "select", &error))?;
        let Made { content, blob, fragments } = self.make(&repository, service, &publication.commit, interrupt)?;
        let stored_as = content.blob;
        if content.digest != publication.digest {
            return Ok(false);
        }
        if stated.current {
            self.publisher.settle_built(service, &publication.commit, &key, content, blob, SystemTime::now())?;
        } else {
            self.publisher.restore_superseded(service, &publication.digest, &content, blob)?;
        }
        self.remember_fragments(&stored_as, &fragments);
        Ok(true)
    }

    /// Makes the zstd form of a version from its gzip form.
    pub(super) fn zstd_from_gzip(&self, service: &Service, version: &TarballDigest) -> Result<(), ServiceFailure> {
        Ok(self.publisher.zstd_from_gzip(service, version, self.options.min_free_bytes)?)
    }

    fn make(
        &self,
        repository: &gix::ThreadSafeRepository,
        service: &Service,
        commit: &CommitId,
        interrupt: &AtomicBool,
    ) -> Result<Made<'_>, ServiceFailure> {
        let BuildOptions { limits, threads, min_free_bytes } = self.options;
        self.publisher.require_room(min_free_bytes)?;
        let earlier = self.earlier(service);
        let blob = self.publisher.temporary(earlier.as_ref());
        let mut blob = blob.map_err(|error| ServiceFailure::passing("store", error.to_string()))?;
        let lfs = service.selection.lfs.then(|| self.mirror.lfs_objects());
        let means = Means { limits: &limits, threads, earlier: earlier.as_ref(), lfs: lfs.as_ref(), interrupt };
        let mut built = tarball::build(repository, commit, &service.selection, &means, &mut blob)
            .map_err(|error| tarball_failure(&self.mirror, "build", &error))?;
        let (fragments, reused) = (std::mem::take(&mut built.fragments), built.reused_fragments as u64);
        self.metrics.fragments.with_label_values(&["reused"]).inc_by(reused);
        self.metrics.fragments.with_label_values(&["made"]).inc_by(fragments.fragments() as u64 - reused);
        Ok(Made { content: built.into(), blob, fragments })
    }

    /// What is published of a service, to take from it what has not changed.
    fn earlier(&self, service: &Service) -> Option<Earlier> {
        let current = service.current()?;
        // A service that was moved to another repository begins anew.
        let same = current.publication().repository == service.repository;
        let stored = current.representation(Encoding::Zstd).filter(|_| same)?;
        self.publisher.blobs().earlier(&stored.digest)
    }

    /// After the blob has its name: a sweep removes what stands beside none.
    fn remember_fragments(&self, blob: &BlobDigest, fragments: &FragmentIndex) {
        if let Err(error) = self.publisher.blobs().keep_fragments(blob, fragments) {
            tracing::warn!(%blob, %error, "what a blob is made of cannot be kept; the next build is slower");
        }
    }
}
