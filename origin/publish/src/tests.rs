//! The publisher on local files, with failures that tests inject into objects and records.

mod by_plan;
mod collection;
mod damage;
mod deltas;
mod failures;
mod oci;
mod ownership;
mod publishing;
mod rollout;
mod staging;
mod staging_ends;
mod start;
mod verifying;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use prometheus::Registry;
use tempfile::TempDir;
use weir_model::ServerClocks;
use weir_model::stored_mirror::{Bundle, MirrorManifest, Part};
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::{ObjectDigest, Sha256, TarballDigest};
use weir_protocol::manifest::Frame;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;
use weir_source::{Candidate, Service, ServiceConfig};
use weir_store::testing::{FaultyEngine, FaultyStore, WriteFault};
use weir_store::{Area, Objects, RecordKey, Records, StoreMetrics};
use weir_tarball::{Built, ContentKey, FrameSink, Recipe};
use weir_upstream::DataDir;

use super::stored::record;
use super::*;

type FailWrites = Box<dyn Fn(&[WriteFault])>;

/// A data directory, and the parts that a publisher is opened with.
struct TestStore {
    dir: TempDir,
    data_dir: DataDir,
    store: Arc<FaultyStore>,
    /// Failures of the next record writes.
    fail_writes: FailWrites,
    objects: Objects,
    records: Records,
    /// How many events were announced.
    events: Arc<AtomicUsize>,
    retention: RetentionConfig,
    floor: Generation,
    lower_generations: bool,
    clocks: ServerClocks,
    signer: Arc<Signer>,
    may_store_blobs: Option<MayStoreBlobs>,
}

fn shop() -> RepositoryName {
    "shop".parse().unwrap()
}

fn name(service: &str) -> ServiceName {
    service.parse().unwrap()
}

fn revision(number: u64) -> RevisionId {
    format!("sha1:{number:040x}").parse().unwrap()
}

fn key(number: u64) -> ContentKey {
    ContentKey::from_bytes(*blake3::hash(&number.to_be_bytes()).as_bytes())
}

/// A minute of the year 2026.
fn at(minute: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_000_000 + 60 * minute)
}

fn announce(events: &Arc<AtomicUsize>) -> Announce {
    let events = events.clone();
    Arc::new(move |_| {
        events.fetch_add(1, Ordering::SeqCst);
    })
}

fn service(service: &str) -> Arc<Service> {
    service_of(service, "shop")
}

fn service_of(service: &str, repository: &str) -> Arc<Service> {
    let config = ServiceConfig::new(name(service), repository.parse().unwrap());
    Arc::new(Service::new(&config, |_| None, None).unwrap())
}

fn candidate(service: &Arc<Service>, number: u64) -> Candidate {
    Candidate {
        service: service.clone(),
        revision: revision(number),
        version: None,
        parts: Vec::new(),
        key: key(number),
        age: Box::default(),
        stepped_back: None,
    }
}

/// A tarball of these frames.
fn built(frames: &[&str]) -> Built {
    let frame =
        |text: &&str| Frame { digest: ObjectDigest::of(text.as_bytes()), size: text.len() as u64, tar_size: 1000 };
    Built {
        digest: TarballDigest::of(frames.concat().as_bytes()),
        sha256: Sha256::from_bytes([7; 32]),
        size: 1000 * frames.len() as u64,
        omitted: Vec::new(),
        entries: 1,
        zstd: frames.iter().map(frame).collect(),
        gzip: None,
        recipe: Recipe::default(),
        reused_frames: 0,
        whole: None,
    }
}

impl TestStore {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap().0;
        std::fs::create_dir(dir.path().join("objects")).unwrap();
        let local = LocalFileSystem::new_with_prefix(dir.path().join("objects")).unwrap();
        let store = FaultyStore::over(Arc::new(local));
        let engine = FaultyEngine::local(&dir.path().join("records"));
        let metrics = StoreMetrics::register(&Registry::new()).unwrap();
        Self {
            objects: Objects::over(store.clone(), metrics.clone()),
            records: Records::over(engine.clone(), metrics),
            events: Arc::default(),
            retention: RetentionConfig::default(),
            floor: 0,
            signer: Arc::default(),
            may_store_blobs: None,
            lower_generations: false,
            clocks: ServerClocks::default(),
            dir,
            data_dir,
            store,
            fail_writes: Box::new(move |faults| engine.fail_writes(faults.iter().copied())),
        }
    }

    /// Opens a publisher, as at a start of the process.
    async fn open(&self) -> Arc<Publisher> {
        self.open_with_definitions().await.0
    }

    async fn open_with_definitions(&self) -> (Arc<Publisher>, StoredDefinitions) {
        self.try_open().await.unwrap()
    }

    async fn try_open(&self) -> Result<(Arc<Publisher>, StoredDefinitions), PublishError> {
        super::open(self.objects.clone(), self.records.clone(), self.data_dir.clone(), self.options()).await
    }

    /// The options of a single origin.
    fn options(&self) -> Options {
        Options {
            generation_floor: self.floor,
            lower_generations: self.lower_generations,
            clocks: self.clocks.clone(),
            retention: self.retention.clone(),
            signer: self.signer.clone(),
            announce: announce(&self.events),
            metrics: PublishMetrics::register(&Registry::new()).unwrap(),
            validity: Validity::always(),
            superseded: None,
            may_store_blobs: self.may_store_blobs.clone(),
        }
    }

    /// Opens and starts a publisher with these services of `shop` configured.
    async fn start(&self, services: &[&str]) -> (Arc<Publisher>, Started) {
        let publisher = self.open().await;
        let configured = services.iter().copied().map(name).collect();
        let started = publisher.ownership.start(&configured, at(1000)).await.unwrap();
        (publisher, started)
    }

    fn events(&self) -> usize {
        self.events.load(Ordering::SeqCst)
    }

    /// The record of `shop`.
    async fn record(&self) -> Bytes {
        self.records.get(&RecordKey::repository(&shop())).await.unwrap().unwrap().bytes
    }

    async fn sequence(&self) -> u64 {
        record::RepositoryRecord::parse(&shop(), &self.record().await).unwrap().sequence
    }

    fn object(&self, area: Area, digest: &ObjectDigest) -> PathBuf {
        self.dir.path().join("objects/shop").join(area.as_str()).join(digest.hex())
    }

    /// The files of state pages.
    async fn pages(&self) -> Vec<PathBuf> {
        let record = record::RepositoryRecord::parse(&shop(), &self.record().await).unwrap();
        record.pages.iter().map(|page| self.object(Area::Private, &page.digest)).collect()
    }
}

/// Publishes a tarball of these frames at the given minute.
async fn publish(
    publisher: &Publisher,
    service: &Arc<Service>,
    number: u64,
    frames: &[&str],
) -> Result<Outcome, PublishError> {
    publish_candidate(publisher, &candidate(service, number), number, frames).await
}

async fn publish_candidate(
    publisher: &Publisher,
    candidate: &Candidate,
    number: u64,
    frames: &[&str],
) -> Result<Outcome, PublishError> {
    let attempt = publisher.repositories.begin_attempt(&candidate.service.repository);
    let frames_to_put: Vec<Bytes> = frames.iter().map(|frame| Bytes::copy_from_slice(frame.as_bytes())).collect();
    // The frame sink blocks, so it must not run on the runtime.
    let put = tokio::task::spawn_blocking(move || {
        frames_to_put.into_iter().try_for_each(|frame| attempt.put(frame).map(drop)).map(|()| attempt)
    });
    let attempt = put.await.unwrap().map_err(|error| PublishError::Object(error.to_string()))?;
    publisher.publish_built(candidate, built(frames), attempt, at(number)).await
}

fn current(service: &Service) -> Descriptor {
    Descriptor::clone(&service.current().expect("something is published"))
}

fn change(by: &str, minute: u64) -> VersionChange {
    VersionChange { expected: None, author: Author { by: Some(by.to_owned()), reason: None }, now: at(minute) }
}
