//! Where blobs and publications meet: a descriptor is published after its blob is stored, and no blob goes while a
//! descriptor names it. All of this blocks.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytesize::ByteSize;
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::{Descriptor, Generation, Representation};
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::encoding::Encoding;
use weir_shared::event::EventKind;
use weir_shared::name::{RepositoryName, ServiceName};

use crate::blob_store::{BlobError, BlobStore, TemporaryBlob};
use crate::config::RetentionConfig;
use crate::data_dir::DataDir;
use crate::event_log::EventLog;
use crate::failpoint::failpoint;
use crate::gzip;
use crate::metrics::Metrics;
use crate::publication::history::Page;
use crate::publication::{
    Change, Content, Kept, Order, OrderError, Reference, State, StateError, Stated, Statement, is_current,
};
use crate::service::Service;
use crate::signing::Signer;
use crate::tarball::ContentKey;

/// Blobs that are removed while nothing can be published, at the most.
const SWEPT_AT_A_TIME: usize = 1000;

/// The blobs and the publications of an origin, and the order between them.
pub(crate) struct Publisher {
    blobs: BlobStore,
    state: State,
    /// Read: from when a blob gets its name, or is found to be there, until a descriptor names it. Written: a sweep.
    order: RwLock<()>,
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

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Blobs that were removed.
    pub(crate) removed: u64,
    /// Blobs that were looked at to find those that nobody knows of.
    pub(crate) looked_at: u64,
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
        Ok(Self { blobs, state, order: RwLock::new(()), generation_floor, events, metrics, _data_dir: data_dir })
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
    pub(crate) fn commits(&self, repository: &RepositoryName) -> Result<Vec<CommitId>, StateError> {
        self.state.commits(repository)
    }

    /// The blobs.
    pub(crate) fn blobs(&self) -> &BlobStore {
        &self.blobs
    }

    /// A blob's bytes, after all of them were verified.
    pub(crate) fn open_verified(&self, blob: &BlobDigest) -> Result<File, BlobError> {
        let opened = self.blobs.open_verified(blob);
        if matches!(opened, Err(BlobError::Corrupt)) {
            self.metrics.blob_corruptions.inc();
            tracing::warn!(%blob, "a blob on disk had other bytes than its digest says; it was removed");
        }
        opened.map(|opened| opened.file)
    }

    /// What was published before the process started. Services that are not configured any more are retired.
    pub(crate) fn load(&self, configured: &HashSet<&str>, now: SystemTime) -> Result<Published, StateError> {
        let retired = self.state.retire(|service| !configured.contains(service), now)?;
        if !retired.is_empty() {
            tracing::info!(retired = retired.len(), "services that are not configured any more are not served");
        }
        Ok(Published { current: self.state.all_current()?, pins: self.state.pins()?, retired })
    }

    /// Takes a service that was deleted out of what is current. Nothing is published of it after this. Its last
    /// generation, when anything was published.
    pub(crate) fn retire(&self, service: &Service, now: SystemTime) -> Result<Option<Generation>, StateError> {
        service.withdraw();
        // Whoever has looked whether it is withdrawn is done by then.
        let _order = self.order.write().unwrap_or_else(PoisonError::into_inner);
        let retired = self.state.retire(|name| name == service.name.as_str(), now)?;
        Ok(retired.first().map(|(_, generation)| *generation))
    }

    /// Publishes the contents that were built before and whose blobs are still there, all at once. For each that was
    /// asked for: whether it is published now; if not, it must be built. For a pinned service, or one that
    /// was withdrawn, there is nothing to do.
    pub(crate) fn settle_known(&self, found: &[Sighting], now: SystemTime) -> Result<Vec<bool>, StateError> {
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        let mut settled = Vec::with_capacity(found.len());
        let (mut services, mut stated, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for Sighting { service, commit, key } in found {
            if service.is_pinned() || service.is_withdrawn() {
                settled.push(true);
                continue;
            }
            let known = self.state.content(key)?;
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

    /// A place to write the blob of a build.
    pub(crate) fn temporary(&self) -> io::Result<TemporaryBlob<'_>> {
        self.blobs.temporary()
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

    /// Stores the blob of a superseded version that was built again, and names it in the version's descriptor.
    pub(crate) fn restore_superseded(
        &self,
        superseded: &Descriptor,
        content: &Content,
        blob: TemporaryBlob<'_>,
    ) -> Result<(), PublishError> {
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        blob.keep(&content.blob)?;
        if superseded.representations().iter().all(|representation| representation.digest != content.blob) {
            self.state.revise_superseded(superseded, content, SystemTime::now())?;
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
    ) -> Result<Option<Descriptor>, PublishError> {
        let Some(descriptor) = self.state.version(&service.name, digest)? else { return Ok(None) };
        if self.has_gzip(&descriptor) {
            return Ok(Some(descriptor));
        }
        let mut blob = self.blobs.temporary()?;
        let made = gzip::from_zstd(zstd, &mut blob)?;
        if made.tarball != *digest {
            return Err(io::Error::other("the zstd form holds another tarball").into());
        }
        let gzip = Representation { encoding: Encoding::Gzip, dictionary: None, digest: made.blob, size: made.size };
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        blob.keep(&made.blob)?;
        failpoint!("the gzip form is kept");
        let added = self.state.add_representation(&service.name, digest, &gzip, SystemTime::now())?;
        failpoint!("the gzip form is stated");
        let Some(reference) = added else { return Ok(None) };
        self.metrics.gzips.with_label_values(&["made"]).inc();
        if reference.current && reference.descriptor.revision() > descriptor.revision() {
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

    /// The descriptor of a service's digest, if it is the current one or a retained one.
    pub(crate) fn version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Option<Descriptor>, StateError> {
        self.state.version(service, digest)
    }

    /// A descriptor that names this blob.
    pub(crate) fn reference(&self, blob: &BlobDigest) -> Result<Option<Reference>, StateError> {
        self.state.reference(blob)
    }

    /// Drops the versions that need not be kept, removes the blobs that nothing has named for long enough, and looks for
    /// blobs that nobody knows of in one folder of all. The work grows with what goes, not with what is kept.
    pub(crate) fn sweep(&self, now: SystemTime) -> Result<Swept, PublishError> {
        let expired = self.state.expire(now)?;
        failpoint!("versions have expired");
        let mut swept = Swept { removed: 0, looked_at: self.look_for_unknown(now)? };
        loop {
            let _order = self.order.write().unwrap_or_else(PoisonError::into_inner);
            let superfluous = self.state.superfluous(now, SWEPT_AT_A_TIME)?;
            if superfluous.is_empty() {
                break;
            }
            for blob in &superfluous {
                swept.removed += u64::from(self.blobs.remove(blob)?);
            }
            failpoint!("superfluous blobs are removed");
            self.state.forget_blobs(&superfluous)?;
            failpoint!("superfluous blobs are forgotten");
        }
        self.metrics.swept_blobs.inc_by(swept.removed);
        self.metrics.expired_versions.with_label_values(&["age"]).inc_by(expired.by_age);
        self.metrics.expired_versions.with_label_values(&["bytes"]).inc_by(expired.by_bytes);
        self.show_kept(&self.state.kept()?, now);
        self.require_room(0)?;
        if swept.removed > 0 {
            tracing::info!(removed = swept.removed, "blobs were swept");
        }
        Ok(swept)
    }

    /// What a process that was killed stored and did not state is found within as many sweeps as there are folders.
    fn look_for_unknown(&self, now: SystemTime) -> Result<u64, PublishError> {
        let folder = self.state.next_folder()?;
        let _order = self.order.write().unwrap_or_else(PoisonError::into_inner);
        let found = self.blobs.in_folder(folder)?;
        self.state.found_in_folder(folder, &found, now)?;
        Ok(found.len() as u64)
    }

    fn show_kept(&self, kept: &Kept, now: SystemTime) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics.store_bytes.set(gauge(kept.bytes));
        self.metrics.store_blobs.set(gauge(kept.blobs));
        self.metrics.store_unnamed_blobs.set(gauge(kept.unnamed));
        self.metrics.superseded_versions.set(gauge(kept.superseded));
        let oldest = kept.oldest.map(|at| UNIX_EPOCH + Duration::from_millis(at));
        let age = oldest.and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
        self.metrics.oldest_superseded.set(gauge(age.as_secs()));
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
        let pinned = self.state.pin(order, digest, self.generation_floor)?;
        // First: who sees the new generation sees why.
        service.pinned(pinned.since);
        self.show(service, pinned.change);
        Ok(())
    }

    /// Lets a service follow its ref again, from its repository's next look on. False: it was not pinned.
    pub(crate) fn unpin(&self, service: &Service, order: &Order<'_>) -> Result<bool, OrderError> {
        let _alone = self.alone_with(service)?;
        let was_pinned = self.state.unpin(order)?;
        service.unpinned();
        Ok(was_pinned)
    }

    /// Nobody else publishes or pins meanwhile, so that what is durable and what is shown change together.
    fn alone_with(&self, service: &Service) -> Result<RwLockWriteGuard<'_, ()>, OrderError> {
        let alone = self.order.write().unwrap_or_else(PoisonError::into_inner);
        if service.is_withdrawn() {
            return Err(OrderError::Withdrawn(service.name.clone()));
        }
        Ok(alone)
    }

    /// For each service whether it was stated, or that its descriptor would be too large.
    fn publish(
        &self,
        services: &[&Service],
        stated: &[Stated],
        now: SystemTime,
    ) -> Result<Vec<Result<(), StateError>>, StateError> {
        let changes = self.state.publish(stated, now, self.generation_floor)?;
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
            Change::None => {}
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
mod tests {
    use super::*;
    use crate::config::ServiceConfig;
    use crate::publication::history::Why;
    use crate::publication::tests::content;
    use prometheus::Registry;
    use std::io::Write;
    use std::path::Path;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(minute: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_000_000 + 60 * minute)
    }

    /// With the defaults, but that a blob goes with its last name.
    fn open(dir: &Path) -> Publisher {
        open_with(dir, RetentionConfig { linger: Duration::ZERO, ..RetentionConfig::default() })
    }

    fn open_with(dir: &Path, retention: RetentionConfig) -> Publisher {
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let events = Arc::new(crate::event_log::tests::log(100, 1 << 20));
        Publisher::open(DataDir::open(dir).unwrap().0, 0, retention, events, metrics).unwrap()
    }

    fn service(name: &str) -> Arc<Service> {
        let config = ServiceConfig::new(name.parse().unwrap(), "shop".parse().unwrap());
        Arc::new(Service::new(&config, None).unwrap())
    }

    fn commit(number: u64) -> CommitId {
        format!("{number:040x}").parse().unwrap()
    }

    fn key(number: u64) -> ContentKey {
        ContentKey::from_bytes(*blake3::hash(&number.to_be_bytes()).as_bytes())
    }

    /// Publishes the content of that number, a minute per number.
    fn publish(publisher: &Publisher, service: &Service, number: u64) -> BlobDigest {
        let bytes = format!("blob {number}");
        let mut blob = publisher.temporary().unwrap();
        blob.write_all(bytes.as_bytes()).unwrap();
        let content = content(&format!("tar {number}"), &bytes);
        let digest = content.blob;
        publisher.settle_built(service, &commit(number), &key(number), content, blob, at(number)).unwrap();
        digest
    }

    fn stored(publisher: &Publisher, blobs: &[BlobDigest]) -> Vec<usize> {
        (0..blobs.len()).filter(|i| publisher.blobs().size(&blobs[*i]).is_ok()).collect()
    }

    #[test]
    fn the_current_and_the_last_ten_of_two_days_stay_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let service = service("shop-prod");
        let blobs: Vec<_> = (0..13).map(|number| publish(&publisher, &service, number)).collect();
        publisher.sweep(at(13)).unwrap();
        assert_eq!(stored(&publisher, &blobs), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], "the current one and ten");
        let gone = content("tar 1", "").digest;
        assert!(publisher.version(&service.name, &gone).unwrap().is_none());

        // Number 9 was superseded in minute 10.
        publisher.sweep(at(10) + 48 * HOUR).unwrap();
        assert_eq!(stored(&publisher, &blobs), [10, 11, 12]);
        publisher.sweep(at(10) + 480 * HOUR).unwrap();
        assert_eq!(stored(&publisher, &blobs), [12], "the current one for good");
        let kept = content("tar 12", "").digest;
        assert!(publisher.version(&service.name, &kept).unwrap().is_some());
    }

    #[test]
    fn a_content_that_is_known_is_published_without_a_build_as_long_as_its_blob_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let (one, other) = (service("one"), service("other"));
        let blob = publish(&publisher, &one, 1);
        let sighting =
            |service: &Arc<Service>, number| Sighting { service: service.clone(), commit: commit(number), key: key(1) };
        let looked = [sighting(&one, 1), sighting(&one, 2), sighting(&other, 2)];
        assert_eq!(publisher.settle_known(&looked[..1], at(2)).unwrap(), [true]);
        assert_eq!(publisher.metrics.publications.get(), 1, "nothing new");
        assert_eq!(publisher.settle_known(&looked[1..], at(2)).unwrap(), [true, true]);
        assert_eq!(publisher.metrics.publications.get(), 3);
        assert_eq!(one.current().unwrap().publication().commit, commit(2));
        assert_eq!(one.current().unwrap().representations(), other.current().unwrap().representations());

        let unknown = Sighting { key: key(7), ..sighting(&one, 3) };
        assert_eq!(publisher.settle_known(&[unknown, sighting(&one, 3)], at(3)).unwrap(), [false, true]);
        let hex = blob.hex();
        std::fs::remove_file(dir.path().join("blobs").join(&hex[..2]).join(&hex)).unwrap();
        assert_eq!(publisher.settle_known(&[sighting(&one, 4)], at(4)).unwrap(), [false]);
    }

    #[test]
    fn what_is_published_is_there_after_a_restart_and_a_retired_service_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let (kept, dropped) = (service("kept"), service("dropped"));
        publish(&publisher, &kept, 1);
        let orphan = publish(&publisher, &dropped, 2);
        let generation = dropped.current().unwrap().publication().generation;
        drop(publisher);

        let publisher = open(dir.path());
        let loaded = publisher.load(&["kept"].into(), at(3)).unwrap();
        assert_eq!(loaded.current.len(), 1);
        assert_eq!(loaded.current[0].1.bytes(), kept.current().unwrap().bytes());
        assert_eq!(loaded.retired, [(dropped.name.clone(), generation)]);
        assert!(publisher.load(&["kept"].into(), at(3)).unwrap().retired.is_empty(), "it is told once");
        publisher.sweep(at(4)).unwrap();
        assert!(publisher.blobs().size(&orphan).is_ok(), "kept as any superseded version is");
        publisher.sweep(at(3) + 48 * HOUR).unwrap();
        assert!(publisher.blobs().size(&orphan).is_err());

        // It comes back, by a clock that stands still: its generation grows all the same.
        let again = service("dropped");
        publish(&publisher, &again, 2);
        assert_eq!(again.current().unwrap().publication().generation, generation + 1);
    }

    #[test]
    fn a_deleted_service_is_not_published_by_a_build_that_ends_later() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let (gone, never) = (service("gone"), service("never"));
        publish(&publisher, &gone, 1);
        let generation = gone.current().unwrap().publication().generation;
        assert_eq!(publisher.retire(&gone, at(2)).unwrap(), Some(generation));
        assert_eq!(publisher.retire(&never, at(2)).unwrap(), None, "nothing was published of it");
        publish(&publisher, &gone, 3);
        let sighting = Sighting { service: gone.clone(), commit: commit(4), key: key(1) };
        assert_eq!(publisher.settle_known(&[sighting], at(4)).unwrap(), [true], "nothing is to be done");
        assert_eq!(gone.current().unwrap().publication().generation, generation);
        assert!(publisher.load(&HashSet::new(), at(5)).unwrap().current.is_empty());
        // By the same name it is newer.
        let again = service("gone");
        publish(&publisher, &again, 1);
        assert!(again.current().unwrap().publication().generation > generation);
    }

    #[test]
    fn other_bytes_of_the_same_content_are_a_revision() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let service = service("shop-prod");
        publish(&publisher, &service, 1);
        let before = service.current().unwrap();
        let mut blob = publisher.temporary().unwrap();
        blob.write_all(b"of a newer codec").unwrap();
        let rebuilt = content("tar 1", "of a newer codec");
        publisher.settle_built(&service, &commit(1), &key(1), rebuilt, blob, at(5)).unwrap();
        let after = service.current().unwrap();
        assert_eq!(after.publication(), before.publication());
        assert_eq!(after.revision(), before.revision() + 1);
    }

    fn order<'a>(service: &'a Service, minute: u64) -> Order<'a> {
        Order { service: &service.name, expected: None, by: Some("ann"), now: at(minute) }
    }

    #[test]
    fn a_rollback_is_a_new_generation_that_stays_until_it_is_unpinned() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let service = service("shop-prod");
        publish(&publisher, &service, 1);
        let first = service.current().unwrap();
        publish(&publisher, &service, 2);
        let second = service.current().unwrap();
        let digest = first.publication().digest;

        let overtaken = Order { expected: Some(first.publication().generation), ..order(&service, 3) };
        let refused = publisher.pin(&service, &overtaken, Some(&digest));
        assert!(matches!(refused, Err(OrderError::Overtaken { current, .. }) if current == Some(second.version().0)));
        let unknown = TarballDigest::of(b"never seen");
        let refused = publisher.pin(&service, &order(&service, 3), Some(&unknown));
        assert!(matches!(refused, Err(OrderError::NotRetained(..))));
        assert!(!service.is_pinned());

        let expected = Order { expected: Some(second.publication().generation), ..order(&service, 3) };
        publisher.pin(&service, &expected, Some(&digest)).unwrap();
        let back = service.current().unwrap();
        assert!(back.publication().generation > second.publication().generation);
        assert_eq!((back.publication().digest, &back.publication().commit), (digest, &commit(1)));
        assert_eq!(back.representations(), first.representations());
        assert!(service.is_pinned());

        // Whatever is found or was being built meanwhile changes nothing, and what is served can be healed.
        publish(&publisher, &service, 4);
        let seen = Sighting { service: service.clone(), commit: commit(2), key: key(2) };
        assert_eq!(publisher.settle_known(&[seen], at(4)).unwrap(), [true]);
        assert_eq!(service.current().unwrap().bytes(), back.bytes());
        publish(&publisher, &service, 1);
        assert_eq!(service.current().unwrap().bytes(), back.bytes());

        let swept = at(3) + 480 * HOUR;
        publisher.sweep(swept).unwrap();
        assert!(publisher.blobs().size(&back.representations()[0].digest).is_ok(), "a pin outlives every age");
        drop(publisher);

        let publisher = open(dir.path());
        let published = publisher.load(&["shop-prod"].into(), at(5)).unwrap();
        assert_eq!(published.pins, [(service.name.clone(), at(3))]);
        assert_eq!(published.current[0].1.bytes(), back.bytes());
        assert!(publisher.unpin(&service, &order(&service, 6)).unwrap());
        assert!(!publisher.unpin(&service, &order(&service, 6)).unwrap(), "it was not pinned any more");
        publish(&publisher, &service, 7);
        assert_eq!(service.current().unwrap().publication().commit, commit(7));
        assert!(publisher.load(&["shop-prod"].into(), at(8)).unwrap().pins.is_empty());
    }

    #[test]
    fn the_current_version_is_pinned_without_a_new_generation_and_a_pin_goes_with_its_service() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let service = service("shop-prod");
        let nothing = publisher.pin(&service, &order(&service, 0), None);
        assert!(matches!(nothing, Err(OrderError::NothingPublished(_))));
        publish(&publisher, &service, 1);
        let before = service.current().unwrap();
        publisher.pin(&service, &order(&service, 2), None).unwrap();
        publisher.pin(&service, &order(&service, 3), Some(&before.publication().digest)).unwrap();
        assert_eq!(service.current().unwrap().bytes(), before.bytes());
        assert_eq!(publisher.load(&["shop-prod"].into(), at(4)).unwrap().pins, [(service.name.clone(), at(2))]);
        assert!(publisher.load(&HashSet::new(), at(4)).unwrap().pins.is_empty());
        assert!(publisher.load(&["shop-prod"].into(), at(4)).unwrap().pins.is_empty());
    }

    #[test]
    fn the_history_tells_what_was_published_when_and_why_page_by_page() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let (service, other) = (service("shop-prod"), service("shop-prod2"));
        for number in 0..14 {
            publish(&publisher, &service, number);
        }
        publish(&publisher, &other, 20);
        publisher.sweep(at(14)).unwrap();
        let back = content("tar 5", "").digest;
        publisher.pin(&service, &order(&service, 15), Some(&back)).unwrap();
        publisher.unpin(&service, &order(&service, 16)).unwrap();

        let first = publisher.history(&service.name, None, 4).unwrap();
        let newest = &first.publications[0];
        assert_eq!((newest.entry.why, newest.entry.by.as_deref()), (Why::RolledBack, Some("ann")));
        assert!(newest.current && newest.retained && newest.entry.pinned_at < newest.entry.unpinned_at);
        let mut seen = first.publications.clone();
        let mut next = first.next_before;
        while let Some(before) = next {
            let page = publisher.history(&service.name, Some(before), 4).unwrap();
            seen.extend(page.publications);
            next = page.next_before;
        }
        assert_eq!(seen.len(), 15);
        assert!(seen.is_sorted_by(|one, next| one.entry.generation > next.entry.generation));
        let retained: Vec<_> = seen.iter().map(|listed| listed.retained).collect();
        let expected = [true].into_iter().chain((0..14).rev().map(|number| number >= 3)).collect::<Vec<_>>();
        assert_eq!(retained, expected);
        assert_eq!(seen[14].entry.commit, commit(0));
        assert_eq!(seen.iter().filter(|listed| listed.current).count(), 1);
        drop(publisher);
        let publisher = open(dir.path());
        assert_eq!(publisher.history(&service.name, None, 200).unwrap().publications, seen);
    }

    #[test]
    fn a_history_is_bounded_by_number_and_age() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open_with(dir.path(), RetentionConfig { history: 5, ..RetentionConfig::default() });
        let service = service("shop-prod");
        let entries = |before| publisher.history(&service.name, before, 200).unwrap();
        publish(&publisher, &service, 1);
        publish(&publisher, &service, 2);
        let days = 90 * 24 * 60;
        publish(&publisher, &service, 1 + days);
        assert_eq!(entries(None).publications.len(), 2, "the first is ninety days old");
        for number in 0..7 {
            publish(&publisher, &service, 10 + days + number);
        }
        let page = entries(None);
        assert_eq!((page.publications.len(), page.next_before), (5, None));
    }

    #[test]
    fn of_too_many_bytes_the_oldest_versions_go_and_shared_blobs_count_once() {
        let dir = tempfile::tempdir().unwrap();
        let retention = RetentionConfig { linger: Duration::ZERO, ..RetentionConfig::default() };
        let publisher = open_with(dir.path(), RetentionConfig { bytes: Some(ByteSize(6 * 6)), ..retention });
        let (one, other) = (service("one"), service("other"));
        // Six bytes each, and each is published by both services.
        let blobs: Vec<_> = (0..8)
            .map(|number| {
                publish(&publisher, &other, number);
                publish(&publisher, &one, number)
            })
            .collect();
        assert_eq!(publisher.state.kept().unwrap().bytes, 8 * 6);
        publisher.pin(&one, &order(&one, 9), Some(&content("tar 0", "").digest)).unwrap();
        publisher.sweep(at(10)).unwrap();
        assert_eq!(stored(&publisher, &blobs), [0, 3, 4, 5, 6, 7], "what is pinned stays, the oldest of the others go");
        assert_eq!(publisher.metrics.expired_versions.with_label_values(&["bytes"]).get(), 5);
        let kept = publisher.state.kept().unwrap();
        assert_eq!((kept.bytes, kept.blobs, kept.unnamed), (36, 6, 0));

        // What is current stays even when it alone is too much.
        drop(publisher);
        let retention = RetentionConfig { linger: Duration::ZERO, ..RetentionConfig::default() };
        let publisher = open_with(dir.path(), RetentionConfig { bytes: Some(ByteSize(1)), ..retention });
        publisher.sweep(at(11)).unwrap();
        assert_eq!(stored(&publisher, &blobs), [0, 7]);
        assert_eq!(publisher.state.kept().unwrap().superseded, 0);
    }

    #[test]
    fn a_blob_lingers_for_downloads_that_come_back_and_stays_when_it_is_named_again() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open_with(dir.path(), RetentionConfig { versions: 0, ..RetentionConfig::default() });
        let service = service("shop-prod");
        let blobs = [1, 2].map(|number| publish(&publisher, &service, number));
        publisher.sweep(at(11)).unwrap();
        assert_eq!(stored(&publisher, &blobs), [0, 1], "nine minutes are not ten");
        let back = Sighting { commit: commit(3), key: key(1), service };
        assert_eq!(publisher.settle_known(&[back], at(11)).unwrap(), [true], "it needs no build while it lingers");
        publisher.sweep(at(20)).unwrap();
        assert_eq!(stored(&publisher, &blobs), [0, 1]);
        publisher.sweep(at(21)).unwrap();
        assert_eq!(stored(&publisher, &blobs), [0]);
        assert!(publisher.state.content(&key(2)).unwrap().is_none(), "what was built into it is forgotten with it");
        assert!(publisher.state.content(&key(1)).unwrap().is_some());
    }

    #[test]
    fn a_sweep_looks_at_one_folder_of_all_and_every_folder_has_its_turn() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let named = publish(&publisher, &service("shop-prod"), 1);
        let unknown: Vec<_> = (0..200)
            .map(|number: u32| {
                let digest = BlobDigest::of(&number.to_be_bytes());
                let path = dir.path().join("blobs").join(&digest.hex()[..2]);
                std::fs::create_dir_all(&path).unwrap();
                std::fs::write(path.join(digest.hex()), number.to_be_bytes()).unwrap();
                digest
            })
            .collect();
        drop(publisher);
        let publisher = open(dir.path());
        let mut swept = Swept::default();
        for _ in 0..256 {
            let once = publisher.sweep(at(2)).unwrap();
            assert!(once.looked_at < 10, "far from all: {once:?}");
            swept.looked_at += once.looked_at;
            swept.removed += once.removed;
        }
        assert_eq!(swept, Swept { removed: 200, looked_at: 201 });
        assert_eq!(stored(&publisher, &unknown), [] as [usize; 0]);
        assert_eq!(stored(&publisher, &[named]), [0]);
    }

    #[test]
    fn versions_of_a_clock_that_was_far_ahead_do_not_push_out_those_that_came_after() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open_with(dir.path(), RetentionConfig { versions: 2, ..RetentionConfig::default() });
        let service = service("shop-prod");
        for number in [1_000_000, 1_000_001, 1, 2, 3] {
            publish(&publisher, &service, number);
        }
        let retained = |number: u64| {
            publisher.version(&service.name, &content(&format!("tar {number}"), "").digest).unwrap().is_some()
        };
        assert_eq!([1_000_000, 1_000_001, 1, 2, 3].map(retained), [false, false, true, true, true]);
    }

    #[test]
    fn the_index_of_a_directory_that_has_none_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = open(dir.path());
        let service = service("shop-prod");
        let blobs = [1, 2, 3].map(|number| publish(&publisher, &service, number));
        let kept = publisher.state.kept().unwrap();
        publisher.state.forget_index();
        assert!(publisher.state.reference(&blobs[0]).is_err());
        drop(publisher);
        let publisher = open(dir.path());
        assert_eq!(publisher.state.kept().unwrap(), kept);
        assert!(!publisher.reference(&blobs[0]).unwrap().unwrap().current);
        assert!(publisher.reference(&blobs[2]).unwrap().unwrap().current);
        publisher.sweep(at(4) + 480 * HOUR).unwrap();
        assert_eq!(stored(&publisher, &blobs), [2]);
    }
}
