//! The stored mirror of a repository: writes bundles and makes mirrors from them, on threads of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::watch;
use weir_git::bundles::{BundleError, BundleRequest, Bundled, HydrateRequest, WrittenBundle};
use weir_model::stored_mirror::{Bundle, MirrorManifest, Part};
use weir_protocol::name::RepositoryName;
use weir_publish::{MirrorUpload, PublishError, unix_milliseconds};
use weir_store::{Area, Objects};
use weir_upstream::RepositoryConfig;

use super::context::Context;
use super::job::Job;
use super::repository::Repository;

/// The largest part of a bundle, in bytes: the largest object of the store.
const MAX_PART_BYTES: u64 = 64 << 20;

/// The bytes of bundles that add a second to `poll_timeout` when a mirror is made from them.
const BYTES_PER_SECOND: u64 = 1 << 20;

/// The interval at which a wait for the store checks whether to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// Makes or updates the mirror of a repository that another origin owns, so that it can move here without a clone. Its
/// record must have been read. Must not run while the repository has a worker here. If it is dropped, its thread ends soon
/// after.
pub(crate) async fn prepare(context: &Context, config: RepositoryConfig) -> Result<(), BundleError> {
    let (_sender, config) = watch::channel(Arc::new(config));
    hydrate(&Repository::open(context, config), true, |_| {}).await.map(drop)
}

/// Writes an incremental bundle now, if anything moved since the last one, because the repository is about to move to
/// another origin. It does not wait for maintenance, which may take minutes: if both write, the later list counts.
pub(super) async fn write_now(repository: &Repository) -> Result<(), BundleError> {
    let permit = repository.context.mirror_transfers.acquire().await;
    let _permit = permit.map_err(|error| BundleError::failed(&error))?;
    write(repository, true).await.map(drop)
}

/// Writes the bundle that is due, if any, and logs and counts it. Returns whether there is nothing to write until
/// something moves. The caller has a permit.
pub(super) async fn write(repository: &Repository, at_once: bool) -> Result<bool, BundleError> {
    let Repository { name, context: Context { max_stored_mirror, metrics, data_dir, .. }, .. } = repository;
    let Some(max_mirror) = *max_stored_mirror else { return Ok(true) };
    let written = try_write(repository, max_mirror, at_once).await;
    let result = match &written {
        Ok(Bundled::UpToDate) => return Ok(true),
        Ok(Bundled::NotYet) => return Ok(false),
        Ok(Bundled::Written(WrittenBundle { is_full, bytes, stored })) => {
            metrics.bundle_bytes.inc_by(*bytes);
            let bundles = stored.bundles.len();
            tracing::info!(repository = %name, full = is_full, bytes, bundles, "stored a bundle of the mirror");
            if *is_full { "full" } else { "incremental" }
        }
        Err(error @ BundleError::TooLarge { .. }) => {
            tracing::warn!(repository = %name, %error, "the mirror is not stored");
            "too_large"
        }
        Err(error) => {
            let error = data_dir.redact(&error.to_string());
            tracing::warn!(repository = %name, error, "no bundle of the mirror was stored; the origin retries");
            "failed"
        }
    };
    metrics.bundles.with_label_values(&[result]).inc();
    written.map(|_| true)
}

async fn try_write(repository: &Repository, max_mirror: u64, at_once: bool) -> Result<Bundled, BundleError> {
    let Repository { name, source, threads, context: Context { publisher, .. }, .. } = repository;
    let stored = publisher.mirrors.read(name).await.map_err(|error| BundleError::failed(&error))?;
    let stored = stored.unwrap_or_default();
    show_newest(repository, &stored);
    let upload = Arc::new(publisher.mirrors.begin(name));
    let (source, reader, writer) = (source.clone(), reader(repository), upload.clone());
    let job = Job::start("bundle", threads, move |stop| {
        let request = BundleRequest {
            stored: &stored,
            read: &|part| reader.read(part, stop),
            write: &|bytes| reader.wait(MirrorUpload::put(&writer, bytes), stop),
            now: unix_milliseconds(SystemTime::now()),
            at_once,
            max_mirror,
            max_part: MAX_PART_BYTES,
        };
        source.mirror().map_or(Ok(Bundled::UpToDate), |mirror| mirror.bundle_mirror(&request, stop))
    });
    let written = job.map_err(|error| BundleError::failed(&error))?.await;
    let written = written.map_err(|panicked| BundleError::failed(&panicked))??;
    if let Bundled::Written(written) = &written {
        let set = publisher.mirrors.set(&upload, &written.stored).await;
        if let Err(error @ PublishError::NotOwner(_)) = &set {
            // The next owner stores what moved since.
            tracing::debug!(repository = %name, %error, "a bundle of the mirror was not stored");
            return Ok(Bundled::NotYet);
        }
        set.map_err(|error| BundleError::failed(&error))?;
        show_newest(repository, &written.stored);
    }
    Ok(written)
}

fn show_newest(repository: &Repository, stored: &MirrorManifest) {
    if let Some(made_at) = stored.made_at() {
        let newest = repository.context.metrics.newest_bundle.with_label_values(&[repository.name.as_str()]);
        newest.set(made_at as f64 / 1000.0);
    }
}

/// Makes the mirror from bundles if there is none or if it is damaged. With `update` it also takes newer bundles into an
/// existing one. Returns how many bundles were used.
pub(super) async fn hydrate(
    repository: &Repository,
    update: bool,
    on_mirror_replaced: impl Fn(&str) + Send + Sync + 'static,
) -> Result<usize, BundleError> {
    let hydrated = try_hydrate(repository, update, on_mirror_replaced).await;
    let result = match &hydrated {
        Ok(0) | Err(BundleError::Interrupted) => return hydrated,
        Ok(bundles) => {
            tracing::info!(repository = %repository.name, bundles, "the mirror was made from stored bundles");
            "hydrated"
        }
        Err(error) => {
            let error = repository.context.data_dir.redact(&error.to_string());
            tracing::warn!(repository = %repository.name, error, "the mirror cannot be made from stored bundles");
            "failed"
        }
    };
    repository.context.metrics.hydrations.with_label_values(&[result]).inc();
    hydrated
}

async fn try_hydrate(
    repository: &Repository,
    update: bool,
    on_mirror_replaced: impl Fn(&str) + Send + Sync + 'static,
) -> Result<usize, BundleError> {
    let Context { publisher, mirror_transfers, .. } = &repository.context;
    let stored = publisher.mirrors.read(&repository.name).await.map_err(|error| BundleError::failed(&error))?;
    let Some(stored) = stored else { return Ok(0) };
    let permit = mirror_transfers.clone().acquire_owned().await.map_err(|error| BundleError::failed(&error))?;
    let (source, config) = (repository.source.clone(), repository.config.borrow().clone());
    let reader = reader(repository);
    let bytes: u64 = stored.bundles.iter().map(Bundle::size).sum();
    let longest = config.poll_timeout + Duration::from_secs(bytes / BYTES_PER_SECOND);
    let job = Job::start("hydrate", &repository.threads, move |stop| {
        // Released when the thread ends.
        let _permit = permit;
        let request = HydrateRequest {
            config: &config,
            stored: &stored,
            read: &|part| reader.read(part, stop),
            update,
            on_mirror_replaced: &on_mirror_replaced,
        };
        source.mirror().map_or(Ok(0), |mirror| mirror.hydrate_mirror(&request, stop))
    });
    let mut job = job.map_err(|error| BundleError::failed(&error))?;
    let Ok(hydrated) = tokio::time::timeout(longest, &mut job).await else {
        // The poll needs the mirror.
        job.interrupt();
        let _ = job.await;
        return Err(BundleError::Failed(format!("it took longer than {} s and was stopped", longest.as_secs())));
    };
    hydrated.map_err(|panicked| BundleError::failed(&panicked))?
}

/// Reads the parts of stored bundles.
pub(super) fn reader(repository: &Repository) -> Reader {
    let objects = repository.context.publisher.mirrors.objects();
    Reader { objects, repository: repository.name.clone(), runtime: Handle::current() }
}

/// Waits for the store, on a thread outside the runtime.
pub(super) struct Reader {
    objects: Objects,
    repository: RepositoryName,
    runtime: Handle,
}

impl Reader {
    pub(super) fn read(&self, part: &Part, stop: &AtomicBool) -> Result<bytes::Bytes, String> {
        self.wait(self.objects.get(&self.repository, Area::Private, &part.digest), stop)
    }

    fn wait<T, E: std::fmt::Display>(
        &self,
        work: impl Future<Output = Result<T, E>>,
        stop: &AtomicBool,
    ) -> Result<T, String> {
        self.runtime.block_on(async {
            tokio::pin!(work);
            while !stop.load(Ordering::Relaxed) {
                tokio::select! {
                    biased;
                    done = &mut work => return done.map_err(|error| error.to_string()),
                    () = tokio::time::sleep(STOP_INTERVAL) => {}
                }
            }
            Err(BundleError::Interrupted.to_string())
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use weir_publish::{Options, PublishMetrics, RetentionConfig, Validity};
    use weir_source::PollRequest;
    use weir_upstream::{DataDir, FetchProgress, UpstreamsConfig};

    use super::*;
    use crate::config::{LimitsConfig, StoreConfig};
    use crate::event_log::EventLog;
    use crate::metrics::Metrics;
    use weir_model::ServerClocks;
    use weir_runtime::bounds::Bounds;
    use weir_store::testing::FaultyEngine;
    use weir_store::{Records, StoreMetrics};

    pub(crate) fn git(dir: &Path, arguments: &[&str]) {
        let mut command = Command::new("git");
        command.current_dir(dir).env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null")]);
        command.args(["-c", "user.name=A", "-c", "user.email=a@example.com"]).args(arguments);
        assert!(command.output().unwrap().status.success(), "{arguments:?}");
    }

    /// An origin with the records of this moment, and objects that all share.
    async fn origin(hub: &Path, data_dir: &DataDir) -> Context {
        let (limits, registry) = (LimitsConfig::default(), prometheus::Registry::new());
        let (metrics, stores) = (Metrics::register(&registry).unwrap(), StoreMetrics::register(&registry).unwrap());
        let url = Some(format!("file://{}", hub.join("objects").display()));
        let config = StoreConfig { url, ..StoreConfig::default() };
        let objects =
            Objects::open(&config, data_dir.root(), stores.clone(), (&Bounds::default(), &ServerClocks::default()))
                .await
                .unwrap();
        let records = Records::over(FaultyEngine::local(&hub.join("records")), stores);
        let events = Arc::new(EventLog::new(&limits, metrics.clone()));
        let options = Options {
            generation_floor: 0,
            lower_generations: false,
            clocks: ServerClocks::default(),
            retention: RetentionConfig::default(),
            signer: Arc::default(),
            announce: events.announce(),
            metrics: PublishMetrics::register(&registry).unwrap(),
            validity: Validity::always(),
            superseded: None,
            may_store_blobs: None,
        };
        let (publisher, _) = weir_publish::open(objects, records, data_dir.clone(), options).await.unwrap();
        Context::new(publisher, data_dir.clone(), events, metrics, &limits, &UpstreamsConfig::default())
            .storing_mirrors(Some(u64::MAX))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_planned_move_takes_the_mirror_of_this_moment() {
        let hub = tempfile::tempdir().unwrap();
        let hub = hub.path();
        for folder in ["objects", "upstream"] {
            fs::create_dir(hub.join(folder)).unwrap();
        }
        let commit = |message| git(&hub.join("upstream"), &["commit", "-q", "--allow-empty", "-m", message]);
        git(&hub.join("upstream"), &["init", "-q", "-b", "main"]);
        commit("first");
        let config = RepositoryConfig::new("shop".parse().unwrap(), hub.join("upstream").to_str().unwrap());
        let [at_owner, at_taker] = ["owner", "taker"].map(|name| DataDir::open(&hub.join(name)).unwrap().0);
        let owner = origin(hub, &at_owner).await;
        let (_sender, updates) = watch::channel(Arc::new(config.clone()));
        let repository = Repository::open(&owner, updates);
        let store = async || {
            let (source, config) = (repository.source.clone(), config.clone());
            let polled = tokio::task::spawn_blocking(move || {
                let request = PollRequest {
                    config: &config,
                    services: &[],
                    progress: &FetchProgress::default(),
                    may_fetch: &|| true,
                    on_mirror_replaced: &|_| {},
                };
                source.poll(&request, &AtomicBool::new(false))
            });
            polled.await.unwrap().unwrap();
            write_now(&repository).await.unwrap();
            write_now(&repository).await.unwrap();
        };
        store().await;
        let written = |result| owner.metrics.bundles.with_label_values(&[result]).get();
        assert_eq!((written("full"), written("incremental")), (1, 0));
        // The owner goes on, and the move follows.
        prepare(&origin(hub, &at_taker).await, config.clone()).await.unwrap();
        commit("second");
        store().await;
        assert_eq!((written("full"), written("incremental")), (1, 1));
        fs::remove_dir_all(hub.join("upstream")).unwrap();
        let taker = origin(hub, &at_taker).await;
        prepare(&taker, config.clone()).await.unwrap();
        assert_eq!(taker.metrics.hydrations.with_label_values(&["hydrated"]).get(), 1);
        let refs = |context: &Context| {
            let mirror = context.data_dir.mirror(&config.name, config.url.as_str());
            fs::read_to_string(mirror.join("packed-refs")).unwrap()
        };
        assert_eq!(refs(&taker), refs(&owner));
    }
}
