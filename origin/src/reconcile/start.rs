//! How an agent begins and ends.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use weir_runtime::shutdown::Drain;

use super::back_offs::BackOffs;
use super::context::Context;
use super::handle::{Calls, Gone, Handle};
use super::lfs::LfsFetches;
use super::poll::Poller;
use super::rebuild::{LostVersions, REBUILD_QUEUE, Rebuilding};
use super::revisions::Revisions;
use super::schedule::{Schedule, first_delay};
use super::state::RepositoryState;
use super::threads::Threads;
use super::work::Work;
use super::work_list::WorkList;
use super::worker::{Worker, by_name};
use crate::config::RepositoryConfig;
use crate::service::Service;
use crate::source;

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
    pub(crate) polls: u64,
    /// Polls that ended with everything that followed.
    pub(crate) attempts: u64,
    /// Until when the host asked to be left alone.
    pub(crate) held_until: Option<SystemTime>,
    /// Until when its LFS server did.
    pub(crate) lfs_held_until: Option<SystemTime>,
}

/// Starts the agent of a repository.
pub(crate) fn start(
    config: RepositoryConfig,
    services: &[Arc<Service>],
    context: &Context,
    begin: Begin,
    drain: &Drain,
) -> Handle {
    let context = Arc::new(Context { threads: Threads::default(), ..context.clone() });
    context.metrics.expect_repository(config.name.as_str());
    let Before { polls, attempts, held_until, lfs_held_until } = begin.before;
    let state = RepositoryState { polls, attempts, held_until, ..RepositoryState::new() };
    let state = Arc::new(watch::Sender::new(state));
    let config = Arc::new(config);
    let (reconfigure, configured) = watch::channel(config.clone());
    let calls = Calls::default();
    let (rebuilds, rebuild_queue) = mpsc::channel(REBUILD_QUEUE);
    let (seen, seen_by_others) = watch::channel(Vec::new());
    let source = source::open(&config, context.sources.clone());
    let (publish, assigned) = watch::channel(services.to_vec());
    let handle = Handle {
        state: state.subscribe(),
        calls: calls.clone(),
        rebuilds,
        seen: seen_by_others,
        publisher: context.publisher.clone(),
        services: Arc::new(publish),
        source: source.clone(),
        data_dir: context.data_dir.clone(),
        threads: context.threads.clone(),
        stop: CancellationToken::new(),
        remove_mirror: Arc::new(AtomicBool::new(false)),
        gone: Gone::default(),
        config: Arc::new(reconfigure),
    };
    let poller = Arc::new(Poller {
        config: configured.clone(),
        services: assigned.clone(),
        min_rate: context.sources.upstreams.min_rate.as_u64(),
        source: source.clone(),
        state: state.clone(),
        limiter: context.limiter.at_host(&config.url),
        threads: context.threads.clone(),
        name: config.name.clone(),
        metrics: context.metrics.clone(),
        data_dir: context.data_dir.clone(),
    });
    let first = Instant::now() + first_delay(begin.together, config.poll_interval, fastrand::f64());
    let mut schedule = Schedule::new(config.poll_interval, config.min_poll_interval, first);
    let pause = |until: SystemTime| Some(Instant::now() + until.duration_since(SystemTime::now()).ok()?);
    if let Some(until) = held_until.and_then(pause) {
        schedule.hold(until);
    }
    let lfs = LfsFetches::held(lfs_held_until.and_then(pause));
    let task = Worker {
        needs_reconcile: services.iter().map(|service| service.name.clone()).collect(),
        services: by_name(services),
        revisions: Revisions::new(config.name.clone()),
        work: Work::new(context.clone(), poller.clone(), lfs),
        config,
        configured,
        assigned,
        source,
        poller,
        state,
        schedule,
        back_offs: BackOffs::default(),
        lost_versions: LostVersions::default(),
        rebuilding: Rebuilding::default(),
        tidied: false,
        seen,
        settled: 0,
        reported: Instant::now(),
        waits_for_lfs: BTreeMap::new(),
        lfs_swept: None,
        upkeep_due: true,
        looked_after: None,
        context,
        list: WorkList::default(),
        looking: Vec::new(),
        look: None,
        to_decide: Vec::new(),
        decided_on: Vec::new(),
        deciding: None,
        works: JoinSet::new(),
        running: HashMap::new(),
        lfs_news: mpsc::unbounded_channel(),
        starting: false,
        awaited: HashMap::new(),
    };
    // Boxed here, because a task is as large as all that it ever moves.
    let work = Box::pin(task.run_after(begin.after.clone(), calls, rebuild_queue));
    let (ended, begun) = (handle.clone(), drain.clone());
    drain.spawn(async move {
        // Dropping the loop tells its jobs to stop; what is published is durable already.
        tokio::select! {
            () = begun.begun() => {}
            () = ended.stop.cancelled() => {}
            () = work => {}
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
    agent.threads.all_ended().await;
    if agent.remove_mirror.load(Ordering::Relaxed) {
        let source = agent.source.clone();
        // A fault there is logged by the runtime, and the name is free all the same.
        let _ = tokio::task::spawn_blocking(move || source.remove_all()).await;
    }
    agent.gone.0.cancel();
}
