//! Where blobs and publications meet: a descriptor is published after its blob is stored, and no blob goes while a
//! descriptor names it. All of this blocks.

mod doubts;
mod forms;
mod pins;
mod retiring;
mod sweep;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use bytesize::ByteSize;
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::event::EventKind;
use weir_shared::name::{RepositoryName, ServiceName};

use crate::blob_store::{BlobError, BlobStore, StoredBlob, TemporaryBlob};
use crate::config::RetentionConfig;
use crate::data_dir::DataDir;
use crate::event_log::EventLog;
use crate::failpoint::failpoint;
use crate::metrics::Metrics;
use crate::publication::history::Page;
use crate::publication::{Change, Content, Inspected, Reference, State, StateError, Stated, Statement, is_current};
use crate::service::Service;
use crate::signing::Signer;
use crate::tarball::{ContentKey, Earlier};

/// The blobs and the publications of an origin, and the order between them.
pub(crate) struct Publisher {
    blobs: BlobStore,
    state: State,
    /// Read: from when a blob gets its name, or is found to be there, until a descriptor names it. Written: a sweep.
    order: RwLock<()>,
    /// Services that were deleted while the state could not be written.
    unretired: Mutex<BTreeSet<ServiceName>>,
    /// Services of which a write failed that may have landed: what is shown of them may not be what is stored.
    doubted: Mutex<BTreeSet<ServiceName>>,
    generation_floor: Generation,
    events: Arc<EventLog>,
    metrics: Metrics,
    /// Whoever publishes holds the directory.
    _data_dir: DataDir,
}

/// What was published before the process started.
pub(crate) struct Published {
    /// Of the services that are configured.
    pub(crate) current: Vec<(ServiceName, Descriptor)>,
    /// Those of them that are pinned, each since when.
    pub(crate) pins: Vec<(ServiceName, SystemTime)>,
    /// The services that are configured no longer since this start, each with its last generation.
    pub(crate) retired: Vec<(ServiceName, Generation)>,
}

/// A service at the commit its ref is at.
#[derive(Debug, Clone)]
pub(crate) struct Sighting {
    pub(crate) service: Arc<Service>,
    pub(crate) commit: CommitId,
    /// The key of the content there.
    pub(crate) key: ContentKey,
}

/// What was found or built could not be stored or published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("the blob cannot be stored: {0}")]
    Blob(#[from] io::Error),
    #[error("the disk has {free} free, less than [limits] min_free = {min_free}: nothing is built until there is room")]
    NoRoom { free: ByteSize, min_free: ByteSize },
}

impl Publisher {
    /// Opens what a data directory holds.
    pub(crate) fn open(
        data_dir: DataDir,
        generation_floor: Generation,
        retention: RetentionConfig,
        events: Arc<EventLog>,
        metrics: Metrics,
    ) -> Result<Self, PublishError> {
        let blobs = BlobStore::open(&data_dir.blobs())?;
        let state = State::open(&data_dir.state(), retention)?;
        let (order, unretired, doubted) = (RwLock::new(()), Mutex::default(), Mutex::default());
        Ok(Self { blobs, state, order, unretired, doubted, generation_floor, events, metrics, _data_dir: data_dir })
    }

    /// Has everything signed from now on, and what is stored signed as the keys of the configuration have it.
    pub(crate) fn sign_with(&mut self, signer: Arc<Signer>) -> Result<(), StateError> {
        let signed = self.state.sign_with(signer)?;
        if signed > 0 {
            tracing::info!(descriptors = signed, "the signing keys have changed: what is stored was signed anew");
        }
        Ok(())
    }

    /// The commits of what is published of a repository and retained: all that may have to be built again.
    pub(crate) fn commits(&self, repository: &RepositoryName) -> Result<Vec<(ServiceName, CommitId)>, StateError> {
        self.state.commits(repository)
    }

    /// The blobs.
    pub(crate) fn blobs(&self) -> &BlobStore {
        &self.blobs
    }

    /// A blob's bytes, after all of them were verified.
    pub(crate) fn open_verified(&self, blob: &BlobDigest) -> Result<StoredBlob, BlobError> {
        let opened = self.blobs.open_verified(blob);
        if matches!(opened, Err(BlobError::Corrupt)) {
            self.metrics.blob_corruptions.inc();
            tracing::warn!(%blob, "a blob on disk had other bytes than its digest says; it was removed");
        }
        opened.map(|opened| opened.bytes)
    }

    /// What was published before the process started. Services that are not configured any more are retired, and those
    /// below the floor of generations are lifted above it.
    pub(crate) fn load(&self, configured: &HashSet<&str>, now: SystemTime) -> Result<Published, StateError> {
        let known = self.state.services()?;
        let gone = known.iter().map(String::as_str).filter(|service| !configured.contains(service));
        let retired = self.state.retire(&gone, now)?;
        if !retired.is_empty() {
            tracing::info!(retired = retired.len(), "services that are not configured any more are not served");
        }
        let lifted = self.state.lift(self.generation_floor, now)?;
        if lifted > 0 {
            let floor = self.generation_floor;
            tracing::info!(services = lifted, floor, "generations below generation_floor: published again above it");
        }
        let current = self.state.all_current()?;
        self.state.check_index(&current, now)?;
        Ok(Published { current, pins: self.state.pins()?, retired })
    }

    /// Publishes the contents that were built before and whose blobs are still there, all at once. For each that was
    /// asked for: whether it is published now; if not, it must be built. For a pinned service, or one that
    /// was withdrawn, there is nothing to do.
    pub(crate) fn settle_known(&self, found: &[Sighting], now: SystemTime) -> Result<Vec<bool>, StateError> {
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        let mut settled = Vec::with_capacity(found.len());
        let (mut services, mut stated, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for Sighting { service, commit, key } in found {
            self.be_sure_of(service)?;
            // A pin holds what is there; where that was lost, something is better than nothing.
            if (service.is_pinned() && service.current().is_some()) || service.is_withdrawn() {
                settled.push(true);
                continue;
            }
            let known = self.state.content(&service.name, key)?;
            let known = known.filter(|content| self.blobs.contains(&content.blob, content.blob_size));
            let place = settled.len();
            settled.push(known.is_some());
            let Some(content) = known else { continue };
            let statement = statement(service, commit);
            if !service.current().is_some_and(|current| is_current(&current, &statement, &content)) {
                self.metrics.builds.with_label_values(&["memo"]).inc();
                places.push(place);
                services.push(service.as_ref());
                stated.push(Stated { statement, key: *key, content });
            }
        }
        if !stated.is_empty() {
            for (place, shown) in places.into_iter().zip(self.publish(&services, &stated, now)?) {
                // Its build tells why; the others are not held up by it.
                settled[place] = shown.is_ok();
            }
        }
        Ok(settled)
    }

    /// Says so when the disk has less room than this.
    pub(crate) fn require_room(&self, min_free_bytes: u64) -> Result<(), PublishError> {
        let free = self.blobs.free_bytes()?;
        self.metrics.disk_free_bytes.set(i64::try_from(free).unwrap_or(i64::MAX));
        if free < min_free_bytes {
            return Err(PublishError::NoRoom { free: ByteSize(free), min_free: ByteSize(min_free_bytes) });
        }
        Ok(())
    }

    /// A place to write the blob of a build that takes from an earlier one.
    pub(crate) fn temporary(&self, earlier: Option<&Earlier>) -> io::Result<TemporaryBlob<'_>> {
        earlier.map_or_else(|| self.blobs.temporary(), |earlier| self.blobs.temporary_after(earlier.blob()))
    }

    /// Stores what was built and publishes it.
    pub(crate) fn settle_built(
        &self,
        service: &Service,
        commit: &CommitId,
        key: &ContentKey,
        content: Content,
        blob: TemporaryBlob<'_>,
        now: SystemTime,
    ) -> Result<(), PublishError> {
        // Before it is this one's turn: what waits for all publications holds up those that come after it.
        let blob = blob.finish(&content.blob)?;
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        if service.is_withdrawn() {
            return Ok(());
        }
        blob.keep()?;
        failpoint!("the blob is kept");
        let stated = Stated { statement: statement(service, commit), key: *key, content };
        let shown = self.publish(&[service], &[stated], now)?;
        Ok(shown.into_iter().collect::<Result<(), _>>()?)
    }

    /// Drops a superseded version whose blob can be had no more.
    pub(crate) fn forget_superseded(&self, superseded: &Descriptor) -> Result<(), StateError> {
        let publication = superseded.publication();
        self.state.forget_superseded(&publication.service, &publication.digest, SystemTime::now())
    }

    /// The same of a version that is known by its name.
    pub(crate) fn forget_version(&self, service: &ServiceName, digest: &TarballDigest) -> Result<(), StateError> {
        self.state.forget_superseded(service, digest, SystemTime::now())
    }

    /// Reads every row of the state; see [`State::inspect`].
    pub(crate) fn inspect(&self) -> Result<Inspected, StateError> {
        self.state.inspect()
    }

    /// Mends what a look at the state found; see [`State::mend_rows`].
    pub(crate) fn mend_rows(&self, inspected: &Inspected, now: SystemTime) -> Result<(), StateError> {
        self.state.mend_rows(inspected, now)
    }

    /// The descriptor of a service's digest, if it is the current one or a retained one.
    pub(crate) fn version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Option<Descriptor>, StateError> {
        self.state.version(service, digest)
    }

    /// A descriptor that names this blob, of a service that is asked for: several may hold the same.
    pub(crate) fn reference(
        &self,
        blob: &BlobDigest,
        of: impl Fn(&str) -> bool,
    ) -> Result<Option<Reference>, StateError> {
        self.state.reference(blob, of)
    }

    /// A part of the history of a service, the newest publications first; see [`State::history`].
    pub(crate) fn history(
        &self,
        service: &ServiceName,
        before: Option<Generation>,
        limit: usize,
    ) -> Result<Page, StateError> {
        self.state.history(service, before, limit)
    }

    /// For each service whether it was stated, or that its descriptor would be too large.
    fn publish(
        &self,
        services: &[&Service],
        stated: &[Stated],
        now: SystemTime,
    ) -> Result<Vec<Result<(), StateError>>, StateError> {
        self.retire_the_rest(now)?;
        let changes = self.state.publish(stated, now, self.generation_floor);
        let changes = changes.inspect_err(|_| services.iter().for_each(|service| self.doubt(service)))?;
        failpoint!("the publication is durable");
        let shown =
            services.iter().zip(changes).map(|(service, change)| change.map(|change| self.show(service, change)));
        let shown = shown.collect();
        failpoint!("the publication is shown");
        Ok(shown)
    }

    /// Shows what is durable, and tells those who follow.
    fn show(&self, service: &Service, change: Change) {
        let tell = |shown: &Descriptor| self.events.append(EventKind::Descriptor(shown.bytes().clone()));
        match change {
            Change::Kept(current) => {
                if let Some(current) = current {
                    service.show(current, tell);
                }
            }
            Change::Pinned(current, since) => {
                service.pinned(since);
                if let Some(current) = current {
                    service.show(current, tell);
                }
            }
            Change::Revised(descriptor) => {
                self.metrics.revisions.inc();
                tracing::info!(service = %service.name, revision = descriptor.revision(), "revised");
                service.show(descriptor, tell);
            }
            Change::Published(descriptor) => {
                self.metrics.publications.inc();
                let publication = descriptor.publication();
                tracing::info!(
                    service = %service.name,
                    generation = publication.generation,
                    commit = publication.commit.short(),
                    digest = %publication.digest,
                    size = publication.size,
                    omitted = publication.omitted.len(),
                    "published"
                );
                service.show(descriptor, tell);
            }
        }
    }
}

fn statement(service: &Service, commit: &CommitId) -> Statement {
    Statement { service: service.name.clone(), repository: service.repository.clone(), commit: commit.clone() }
}

#[cfg(test)]
mod tests;
