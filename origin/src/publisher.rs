//! Where blobs and publications meet: a descriptor is published after its blob is stored, and no blob goes while a
//! descriptor names it. All of this blocks.

mod sweep;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::SystemTime;

use bytesize::ByteSize;
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::{Descriptor, Generation, Representation};
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::encoding::Encoding;
use weir_shared::event::EventKind;
use weir_shared::name::{RepositoryName, ServiceName};

use crate::blob_store::{BlobError, BlobStore, StoredBlob, TemporaryBlob};
use crate::config::RetentionConfig;
use crate::data_dir::DataDir;
use crate::event_log::EventLog;
use crate::failpoint::failpoint;
use crate::gzip::{self, Recoded};
use crate::metrics::Metrics;
use crate::publication::history::Page;
use crate::publication::{
    Change, Content, Inspected, Order, OrderError, Reference, State, StateError, Stated, Statement, is_current,
};
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

    /// Waits until nobody publishes any more who had looked whether a service is withdrawn before it was.
    pub(crate) fn let_publications_end(&self) {
        drop(self.order.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes services that were deleted out of what is current, all at once. Nothing is published of them after this.
    /// Returns those of which anything was published, each with its last generation. What cannot be written now is
    /// written before anything else is.
    pub(crate) fn retire(
        &self,
        services: &[Arc<Service>],
        now: SystemTime,
    ) -> Result<HashMap<ServiceName, Generation>, StateError> {
        services.iter().for_each(|service| service.withdraw());
        let _order = self.order.write().unwrap_or_else(PoisonError::into_inner);
        self.lock_doubted().retain(|doubted| !services.iter().any(|service| service.name == *doubted));
        self.lock_unretired().extend(services.iter().map(|service| service.name.clone()));
        self.retire_the_rest(now)
    }

    /// A service may be defined again before it could be written that it was deleted: what was current then is not.
    fn retire_the_rest(&self, now: SystemTime) -> Result<HashMap<ServiceName, Generation>, StateError> {
        let mut unretired = self.lock_unretired();
        if unretired.is_empty() {
            return Ok(HashMap::new());
        }
        let retired = self.state.retire(&unretired.iter().map(ServiceName::as_str), now)?;
        unretired.clear();
        Ok(retired.into_iter().collect())
    }

    fn lock_unretired(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.unretired.lock().unwrap_or_else(PoisonError::into_inner)
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
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        if service.is_withdrawn() {
            return Ok(());
        }
        blob.keep(&content.blob)?;
        failpoint!("the blob is kept");
        let stated = Stated { statement: statement(service, commit), key: *key, content };
        let shown = self.publish(&[service], &[stated], now)?;
        Ok(shown.into_iter().collect::<Result<(), _>>()?)
    }

    /// Stores the blob of a superseded version that was built again, and names it in the version's descriptor as that is
    /// by now.
    pub(crate) fn restore_superseded(
        &self,
        service: &Service,
        superseded: &TarballDigest,
        content: &Content,
        blob: TemporaryBlob<'_>,
    ) -> Result<(), PublishError> {
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        blob.keep(&content.blob)?;
        let added = self.state.add_representation(&service.name, superseded, &content.zstd(), SystemTime::now());
        let added = added.inspect_err(|_| self.doubt(service))?;
        // It was gone back to meanwhile.
        let is_new =
            |added: &Reference| service.current().is_none_or(|shown| shown.version() < added.descriptor.version());
        if let Some(reference) = added.filter(|added| added.current && is_new(added)) {
            self.show(service, Change::Revised(reference.descriptor));
        }
        Ok(())
    }

    /// The descriptor of a version with its gzip form, which is made from the zstd form unless it is there. `None`: there
    /// is no such version any more.
    pub(crate) fn with_gzip(
        &self,
        service: &Service,
        digest: &TarballDigest,
        zstd: impl io::Read,
        min_free_bytes: u64,
    ) -> Result<Option<Descriptor>, PublishError> {
        let Some(descriptor) = self.state.version(&service.name, digest)? else { return Ok(None) };
        if self.has_gzip(&descriptor) {
            return Ok(Some(descriptor));
        }
        self.require_room(min_free_bytes)?;
        let mut blob = self.blobs.temporary()?;
        let made = gzip::from_zstd(zstd, &mut blob)?;
        let added = self.keep_form(service, &descriptor, (Encoding::Gzip, made), blob)?;
        self.metrics.gzips.with_label_values(&["made"]).inc_by(u64::from(added.is_some()));
        Ok(added)
    }

    /// The zstd form of a version that has lost it, made from its gzip form: where Git cannot bring it back.
    pub(crate) fn zstd_from_gzip(
        &self,
        service: &Service,
        digest: &TarballDigest,
        min_free_bytes: u64,
    ) -> Result<(), PublishError> {
        let gone = || io::Error::other("there is no such version with a gzip form any more");
        let descriptor = self.state.version(&service.name, digest)?.ok_or_else(gone)?;
        let gzip = descriptor.representation(Encoding::Gzip).ok_or_else(gone)?;
        self.require_room(min_free_bytes)?;
        let gzip = self.open_verified(&gzip.digest).map_err(io::Error::other)?;
        let mut blob = self.blobs.temporary()?;
        let made = gzip::to_zstd(gzip.reader(), &mut blob)?;
        self.keep_form(service, &descriptor, (Encoding::Zstd, made), blob)?;
        Ok(())
    }

    /// Stores another form of a version, and states it. `None`: there is no such version any more.
    fn keep_form(
        &self,
        service: &Service,
        version: &Descriptor,
        (encoding, made): (Encoding, Recoded),
        blob: TemporaryBlob<'_>,
    ) -> Result<Option<Descriptor>, PublishError> {
        let digest = &version.publication().digest;
        if made.tarball != *digest {
            return Err(io::Error::other("the form that it was made from holds another tarball").into());
        }
        let form = Representation { encoding, dictionary: None, digest: made.blob, size: made.size };
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        blob.keep(&made.blob)?;
        failpoint!("the other form is kept");
        let added = self.state.add_representation(&service.name, digest, &form, SystemTime::now());
        let added = added.inspect_err(|_| self.doubt(service))?;
        failpoint!("the other form is stated");
        let Some(reference) = added else { return Ok(None) };
        if reference.current && reference.descriptor.revision() > version.revision() {
            self.show(service, Change::Revised(reference.descriptor.clone()));
        }
        Ok(Some(reference.descriptor))
    }

    /// Whether the gzip form of a version is there. Its bytes are not looked at.
    pub(crate) fn has_gzip(&self, descriptor: &Descriptor) -> bool {
        let gzip = descriptor.representation(Encoding::Gzip);
        gzip.is_some_and(|gzip| self.blobs.contains(&gzip.digest, gzip.size))
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

    /// Pins a service to a digest, the current one (`None`) or a retained one, which is published under a new
    /// generation. Whether its blob is good is the caller's to see to.
    pub(crate) fn pin(
        &self,
        service: &Service,
        order: &Order<'_>,
        digest: Option<&TarballDigest>,
    ) -> Result<(), OrderError> {
        let _alone = self.alone_with(service)?;
        let pinned = self.state.pin(order, digest, self.generation_floor);
        let pinned = pinned.inspect_err(|error| self.doubt_after(error, service))?;
        // First: who sees the new generation sees why.
        service.pinned(pinned.since);
        self.show(service, pinned.change);
        Ok(())
    }

    /// Lets a service follow its ref again, from its repository's next look on. False: it was not pinned.
    pub(crate) fn unpin(&self, service: &Service, order: &Order<'_>) -> Result<bool, OrderError> {
        let _alone = self.alone_with(service)?;
        let was_pinned = self.state.unpin(order).inspect_err(|error| self.doubt_after(error, service))?;
        service.unpinned();
        Ok(was_pinned)
    }

    /// Nobody else publishes or pins meanwhile, so that what is durable and what is shown change together.
    fn alone_with(&self, service: &Service) -> Result<RwLockWriteGuard<'_, ()>, OrderError> {
        let alone = self.order.write().unwrap_or_else(PoisonError::into_inner);
        if service.is_withdrawn() {
            return Err(OrderError::Withdrawn(service.name.clone()));
        }
        self.retire_the_rest(SystemTime::now())?;
        self.be_sure_of(service)?;
        Ok(alone)
    }

    fn doubt_after(&self, error: &OrderError, service: &Service) {
        if matches!(error, OrderError::State(_)) {
            self.doubt(service);
        }
    }

    /// A write of a service failed, and may have landed all the same: the disk took it, and could not say so. What it
    /// holds is shown as soon as it can be read: now, or before the service is looked at next.
    fn doubt(&self, service: &Service) {
        self.lock_doubted().insert(service.name.clone());
        if let Err(error) = self.be_sure_of(service) {
            tracing::warn!(service = %service.name, %error, "whether a write that failed has landed is not known yet");
        }
    }

    /// Shows what is stored of a service, when that may not be what is shown.
    fn be_sure_of(&self, service: &Service) -> Result<(), StateError> {
        if !self.lock_doubted().contains(&service.name) {
            return Ok(());
        }
        let (current, pinned) = self.state.standing(&service.name)?;
        match pinned {
            Some(since) => service.pinned(since),
            None => service.unpinned(),
        }
        self.show(service, Change::Kept(current));
        self.lock_doubted().remove(&service.name);
        Ok(())
    }

    fn lock_doubted(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
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
