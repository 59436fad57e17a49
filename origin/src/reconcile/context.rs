//! What the agents of one origin share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::build::BuildOptions;
use super::limiter::Limiter;
use super::threads::Threads;
use crate::config::{LimitsConfig, UpstreamsConfig};
use crate::data_dir::DataDir;
use crate::event_log::EventLog;
use crate::metrics::Metrics;
use crate::publish::Publisher;
use crate::source;

/// Mirrors in which refs are looked up at a time. A look-up reads a few small files, and takes a thread.
const CONCURRENT_LOOK_UPS: usize = 8;

/// What the agents of one origin share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) data_dir: DataDir,
    /// What edges are told.
    pub(crate) log: Arc<EventLog>,
    pub(crate) metrics: Metrics,
    pub(crate) build: BuildOptions,
    /// Who may ask an upstream just now.
    pub(crate) limiter: Arc<Limiter>,
    /// Tarballs that are built at a time.
    pub(crate) builds: Arc<Semaphore>,
    pub(super) concurrent_builds: usize,
    /// Mirrors in which refs are looked up at a time: after a start all are opened.
    pub(super) ref_lookups: Arc<Semaphore>,
    /// Mirrors that are looked after at a time: one.
    pub(super) upkeep: Arc<Semaphore>,
    /// The threads of all jobs.
    pub(crate) threads: Threads,
    /// What their sources share.
    pub(crate) sources: Arc<source::SourceContext>,
}

impl Context {
    /// What the agents share, within these limits.
    pub(crate) fn new(
        publisher: Arc<Publisher>,
        data_dir: DataDir,
        log: Arc<EventLog>,
        metrics: Metrics,
        limits: &LimitsConfig,
        upstreams: &UpstreamsConfig,
    ) -> Self {
        let limiter = Limiter::new(limits, metrics.clone());
        let builds = metrics.bounds.semaphore("builds", limits.concurrent_builds);
        let sources = Arc::new(source::SourceContext::new(data_dir.clone(), metrics.clone(), limits, upstreams));
        Self {
            publisher,
            data_dir,
            log,
            build: BuildOptions::new(limits),
            limiter,
            builds,
            concurrent_builds: limits.concurrent_builds,
            ref_lookups: metrics.bounds.semaphore("ref_lookups", CONCURRENT_LOOK_UPS),
            upkeep: Arc::new(Semaphore::new(1)),
            threads: Threads::default(),
            sources,
            metrics,
        }
    }
}
