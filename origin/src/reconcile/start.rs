//! Starts the worker of a repository, and frees its mirror when it has stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use futures_util::future::OptionFuture;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_runtime::shutdown::Drain;
use weir_source::Service;
use weir_upstream::RepositoryConfig;

use super::context::Context;
use super::handle::{Handle, Handover, Terminated};
use super::part_sources::PartSource;
use super::pipeline::Pipeline;
use super::poll::Poller;
use super::rebuild::REBUILD_QUEUE;
use super::ref_watch;
use super::repository::Repository;
use super::schedule::{Schedule, first_delay};
use super::state::RepositoryState;
use super::worker::{Inputs, Worker};

#[derive(Debug, Default)]
pub(crate) struct StartOptions {
    /// How many workers start together. The first polls of many are spread.
    pub(crate) started_together: usize,
    /// The worker that used the mirror before.
    pub(crate) predecessor: Option<Terminated>,
    pub(crate) handover: Handover,
}

/// Starts the worker of a repository.
pub(crate) fn start(
    config: RepositoryConfig,
    services: &[Arc<Service>],
    context: &Context,
    options: StartOptions,
    drain: &Drain,
) -> Handle {
    context.metrics.expect_repository(config.name.as_str());
    let StartOptions { started_together, predecessor, handover } = options;
    let Handover { polls, applied_polls, held_until, lfs_held_until } = handover;
    let state = RepositoryState { polls, applied_polls, held_until, ..RepositoryState::new() };
    let state = Arc::new(watch::Sender::new(state));
    let first = Instant::now() + first_delay(started_together, config.poll_interval, fastrand::f64());
    let mut schedule = Schedule::new(config.poll_interval, config.min_poll_interval, first);
    let limiter = context.limiter.for_upstream(&config.url);
    let watched = ref_watch::watched_path(&config);
    let (config_sender, config_updates) = watch::channel(Arc::new(config));
    let (service_sender, service_updates) = watch::channel(services.to_vec());
    let (rebuild_sender, rebuild_requests) = mpsc::channel(REBUILD_QUEUE);
    let (revision_sender, revisions) = watch::channel(Vec::new());
    let repository = Arc::new(Repository::open(context, config_updates.clone()));
    let part_source = PartSource {
        source: repository.source.clone(),
        config: config_updates.clone(),
        state: state.subscribe(),
        signals: repository.signals.clone(),
    };
    context.part_sources.insert(repository.name.clone(), part_source);
    let instant = |until: SystemTime| Some(Instant::now() + until.duration_since(SystemTime::now()).ok()?);
    let poller = Arc::new(Poller {
        repository: repository.clone(),
        services: service_updates.clone(),
        state: state.clone(),
        limiter,
    });
    let pipeline = Pipeline::new(poller.clone(), lfs_held_until.and_then(instant));
    let handle = Handle {
        repository: repository.clone(),
        pipeline: pipeline.clone(),
        state: state.subscribe(),
        rebuilds: rebuild_sender,
        revisions,
        services: Arc::new(service_sender),
        stop: CancellationToken::new(),
        remove_mirror: Arc::new(AtomicBool::new(false)),
        terminated: Terminated::default(),
        config: Arc::new(config_sender),
    };
    if let Some(until) = held_until.and_then(instant) {
        schedule.hold_until(until);
    }
    let (watching, watched_state) = (repository, state.subscribe());
    let watch_refs =
        watched.map(|path| Box::pin(async move { ref_watch::follow(&watching, path, watched_state).await }));
    let worker = Worker::new(poller, services, pipeline, schedule, revision_sender);
    let inputs = Inputs { config_updates, service_updates, rebuild_requests };
    // Boxed, because a task is as large as everything that it ever moves.
    let run = Box::pin(worker.run_after(predecessor.clone(), inputs));
    let (stopped, begun) = (handle.clone(), drain.clone());
    drain.spawn(async move {
        // Dropping the worker stops its jobs. Everything published is durable.
        tokio::select! {
            () = begun.begun() => {}
            () = stopped.stop.cancelled() => {}
            () = run => {}
            Some(()) = OptionFuture::from(watch_refs) => {}
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
    let Repository { name, source, threads, context, .. } = &*stopped.repository;
    threads.all_ended().await;
    if stopped.remove_mirror.load(Ordering::Relaxed) {
        let source = source.clone();
        // The runtime logs a panic; the mirror is free even then.
        let _ = tokio::task::spawn_blocking(move || source.remove_all()).await;
        if let Err(error) = context.publisher.mirrors.forget(name).await {
            tracing::warn!(repository = %name, %error, "the stored bundles of a deleted repository stay in the store");
        }
    }
    stopped.terminated.0.cancel();
}
