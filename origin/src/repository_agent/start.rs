//! How an agent begins and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_shared::process::shutdown::Drain;

use super::back_offs::BackOffs;
use super::context::Context;
use super::handle::{Calls, Gone, Handle};
use super::lfs::Lfs;
use super::mirror_slot::MirrorSlot;
use super::poll::Poller;
use super::rebuild::{LostVersions, REBUILD_QUEUE};
use super::revisions::Revisions;
use super::schedule::{Schedule, first_delay};
use super::state::RepositoryState;
use super::task::{Task, policy};
use super::threads::Threads;
use crate::config::RepositoryConfig;
use crate::service::Service;
use crate::source::HttpClients;

/// When an agent begins.
#[derive(Debug, Default)]
pub(crate) struct Begin {
    /// How many agents begin together: the first polls of many are spread.
    pub(crate) together: usize,
    /// The end of the one that had the mirror before.
    pub(crate) after: Option<Gone>,
    /// What the one before knew of its upstream.
    pub(crate) before: Before,
}

/// What an agent leaves to the one that takes its place.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    /// Polls that ended.
    pub(crate) attempts: u64,
    /// Until when the host asked to be left alone.
    pub(crate) held_until: Option<SystemTime>,
    /// Until when its LFS server did.
    pub(crate) lfs_held_until: Option<SystemTime>,
}

/// Starts the agent of a repository.
pub(crate) fn start(
    config: RepositoryConfig,
    services: Vec<Arc<Service>>,
    context: &Context,
    begin: Begin,
    drain: &Drain,
) -> Handle {
    let context = Context { threads: Threads::default(), ..context.clone() };
    context.metrics.expect_repository(config.name.as_str());
    let Before { attempts, held_until, lfs_held_until } = begin.before;
    let state = RepositoryState { attempts, held_until, ..RepositoryState::new() };
    let state = Arc::new(watch::Sender::new(state));
    let config = Arc::new(config);
    let (reconfigure, configured) = watch::channel(config.clone());
    let calls = Calls::default();
    let (rebuilds, rebuild_queue) = mpsc::channel(REBUILD_QUEUE);
    let (seen, seen_by_others) = watch::channel(Vec::new());
    let mirror =
        Arc::new(MirrorSlot::new(context.data_dir.mirror(&config.name, config.url.as_str()), context.data_dir.clone()));
    let (publish, assigned) = watch::channel(services.clone());
    let handle = Handle {
        state: state.subscribe(),
        calls: calls.clone(),
        rebuilds,
        seen: seen_by_others,
        publisher: context.publisher.clone(),
        services: Arc::new(publish),
        mirror: mirror.clone(),
        threads: context.threads.clone(),
        stop: CancellationToken::new(),
        remove_mirror: Arc::new(AtomicBool::new(false)),
        gone: Gone::default(),
        config: Arc::new(reconfigure),
    };
    let poller = Arc::new(Poller {
        config: configured.clone(),
        services: assigned.clone(),
        upstreams: context.upstreams.clone(),
        http: HttpClients::default(),
        mirror: mirror.clone(),
        state: state.clone(),
        places: context.places.clone(),
        at_host: context.places.at_host(&config.url),
        threads: context.threads.clone(),
        name: config.name.clone(),
        metrics: context.metrics.clone(),
        data_dir: context.data_dir.clone(),
    });
    let first = Instant::now() + first_delay(begin.together, config.poll_interval, fastrand::f64());
    let mut schedule = Schedule::new(config.poll_interval, config.shortest_gap, first);
    let pause = |until: SystemTime| Some(Instant::now() + until.duration_since(SystemTime::now()).ok()?);
    if let Some(until) = held_until.and_then(pause) {
        schedule.hold(until);
    }
    let mut lfs = Lfs::default();
    if let Some(until) = lfs_held_until.and_then(pause) {
        lfs.wanted.hold(until);
    }
    let name = config.name.clone();
    let needs_reconcile = services.iter().map(|service| service.name.clone()).collect();
    let task = Task {
        policy: config.verify.as_ref().map(|verify| policy(verify, &config, &context)),
        config,
        configured,
        services,
        assigned,
        mirror,
        poller,
        state,
        schedule,
        needs_reconcile,
        back_offs: BackOffs::default(),
        lost_versions: LostVersions::default(),
        tidied: false,
        reach: Arc::default(),
        revisions: Revisions::new(name),
        seen,
        lfs,
        lfs_swept: None,
        upkeep_due: true,
        looked_after: None,
        context,
    };
    let (ended, begun) = (handle.clone(), drain.clone());
    drain.spawn(async move {
        // Dropping the loop tells its jobs to stop; what is published is durable already.
        tokio::select! {
            () = begun.begun() => {}
            () = ended.stop.cancelled() => {}
            () = Box::pin(task.run_after(begin.after.clone(), calls, rebuild_queue)) => {}
        }
        // A thread that does not come back must not hold up a drain.
        tokio::spawn(free_mirror(ended, begin.after));
    });
    handle
}

/// Waits until nobody uses the mirror any more, and removes it if that was asked for.
async fn free_mirror(agent: Handle, before: Option<Gone>) {
    if let Some(before) = before {
        before.wait().await;
    }
    agent.threads.ended().await;
    if agent.remove_mirror.load(Ordering::Relaxed) {
        let mirror = agent.mirror.clone();
        // A fault there is logged by the runtime, and the name is free all the same.
        let _ = tokio::task::spawn_blocking(move || mirror.remove_all()).await;
    }
    agent.gone.0.cancel();
}
