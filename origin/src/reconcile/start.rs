//! Starts the worker of a repository, and frees its mirror when it has stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_runtime::shutdown::Drain;
use weir_source::{Service, Source};
use weir_upstream::RepositoryConfig;

use super::bundles::Bundles;
use super::context::Context;
use super::handle::{Handle, Terminated, WorkerSignals};
use super::lfs::LfsFetches;
use super::part_sources::PartSource;
use super::pipeline::Pipeline;
use super::poll::Poller;
use super::rebuild::REBUILD_QUEUE;
use super::schedule::{Schedule, first_delay};
use super::state::RepositoryState;
use super::threads::Threads;
use super::worker::{Inputs, Worker};

#[derive(Debug, Default)]
pub(crate) struct StartOptions {
    /// How many workers start together. The first polls of many are spread.
    pub(crate) started_together: usize,
    /// The worker that used the mirror before.
    pub(crate) predecessor: Option<Terminated>,
    pub(crate) handover: Handover,
}

/// What a worker leaves to its successor.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handover {
    /// As [`RepositoryState::polls`].
    pub(crate) polls: u64,
    /// As [`RepositoryState::applied_polls`].
    pub(crate) applied_polls: u64,
    /// The end of the upstream's `Retry-After`.
    pub(crate) held_until: Option<SystemTime>,
    /// The end of the LFS server's `Retry-After`.
    pub(crate) lfs_held_until: Option<SystemTime>,
}

/// Starts the worker of a repository.
#[expect(clippy::too_many_lines, reason = "composition: a list of steps")]
pub(crate) fn start(
    config: RepositoryConfig,
    services: &[Arc<Service>],
    context: &Context,
    options: StartOptions,
    drain: &Drain,
) -> Handle {
    let context = Arc::new(Context { threads: Threads::default(), ..context.clone() });
    context.metrics.expect_repository(config.name.as_str());
    let StartOptions { started_together, predecessor, handover } = options;
    let Handover { polls, applied_polls, held_until, lfs_held_until } = handover;
    let state = RepositoryState { polls, applied_polls, held_until, ..RepositoryState::new() };
    let state = Arc::new(watch::Sender::new(state));
    let config = Arc::new(config);
    let (config_sender, config_updates) = watch::channel(config.clone());
    let (service_sender, service_updates) = watch::channel(services.to_vec());
    let (rebuild_sender, rebuild_requests) = mpsc::channel(REBUILD_QUEUE);
    let (revision_sender, revisions) = watch::channel(Vec::new());
    let signals = WorkerSignals::default();
    let source = Arc::new(Source::open(&config, context.sources.clone()));
    let bundles = Bundles::new(&context, config_updates.clone(), source.clone());
    let part_source = PartSource {
        source: source.clone(),
        config: config_updates.clone(),
        state: state.subscribe(),
        signals: signals.clone(),
    };
    context.part_sources.insert(config.name.clone(), part_source);
    let handle = Handle {
        state: state.subscribe(),
        signals: signals.clone(),
        rebuilds: rebuild_sender,
        revisions,
        publisher: context.publisher.clone(),
        services: Arc::new(service_sender),
        source: source.clone(),
        part_sources: context.part_sources.clone(),
        bundles: bundles.clone(),
        data_dir: context.data_dir.clone(),
        threads: context.threads.clone(),
        stop: CancellationToken::new(),
        remove_mirror: Arc::new(AtomicBool::new(false)),
        terminated: Terminated::default(),
        config: Arc::new(config_sender),
    };
    let poller = Arc::new(Poller {
        config: config_updates.clone(),
        services: service_updates.clone(),
        min_rate: context.sources.upstreams.min_rate.as_u64(),
        source,
        state,
        limiter: context.limiter.for_upstream(&config.url),
        threads: context.threads.clone(),
        name: config.name.clone(),
        metrics: context.metrics.clone(),
        data_dir: context.data_dir.clone(),
        validity: context.validity.clone(),
        bundles,
    });
    let first = Instant::now() + first_delay(started_together, config.poll_interval, fastrand::f64());
    let mut schedule = Schedule::new(config.poll_interval, config.min_poll_interval, first);
    let instant = |until: SystemTime| Some(Instant::now() + until.duration_since(SystemTime::now()).ok()?);
    if let Some(until) = held_until.and_then(instant) {
        schedule.hold_until(until);
    }
    let lfs = LfsFetches::new(lfs_held_until.and_then(instant));
    let pipeline = Pipeline::new(context, poller, lfs);
    let worker = Worker::new(config, services, pipeline, schedule, revision_sender);
    let inputs = Inputs { signals, config_updates, service_updates, rebuild_requests };
    // Boxed, because a task is as large as everything that it ever moves.
    let run = Box::pin(worker.run_after(predecessor.clone(), inputs));
    let (stopped, begun) = (handle.clone(), drain.clone());
    drain.spawn(async move {
        // Dropping the worker stops its jobs. Everything published is durable.
        tokio::select! {
            () = begun.begun() => {}
            () = stopped.stop.cancelled() => {}
            () = run => {}
        }
        // Not part of the drain, which must not wait for a thread that never ends.
        tokio::spawn(release_mirror(stopped, predecessor));
    });
    handle
}

/// Waits until no job uses the mirror, and removes it if requested.
async fn release_mirror(stopped: Handle, predecessor: Option<Terminated>) {
    if let Some(predecessor) = predecessor {
        predecessor.wait().await;
    }
    stopped.threads.all_ended().await;
    if stopped.remove_mirror.load(Ordering::Relaxed) {
        let source = stopped.source.clone();
        // The runtime logs a panic; the mirror is free even then.
        let _ = tokio::task::spawn_blocking(move || source.remove_all()).await;
        let repository = &stopped.config().name;
        if let Err(error) = stopped.publisher.mirrors.forget(repository).await {
            tracing::warn!(%repository, %error, "the stored bundles of a deleted repository stay in the store");
        }
    }
    stopped.terminated.0.cancel();
}
