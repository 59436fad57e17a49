//! What the workers of one origin share.

use std::sync::Arc;

use tokio::sync::Semaphore;
use weir_publish::{Publisher, Validity};
use weir_source::{SourceContext, fetch_memory};
use weir_upstream::{DataDir, UpstreamsConfig};

use super::limiter::Limiter;
use super::part_sources::PartSources;
use super::published_parts::PublishedParts;
use crate::config::LimitsConfig;
use crate::event_log::EventLog;
use crate::metrics::Metrics;
use crate::names::ServiceNames;

/// The most concurrent resolutions of refs. Each reads a few small files, and takes a thread.
const CONCURRENT_RESOLUTIONS: usize = 8;

/// The most mirrors that are made from bundles, or stored because they move, at once: each uses the store at full speed.
const CONCURRENT_TRANSFERS: usize = 4;

/// What the workers of one origin share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) data_dir: DataDir,
    /// The events for edges.
    pub(crate) log: Arc<EventLog>,
    pub(crate) metrics: Metrics,
    /// The threads of a build.
    pub(super) build_threads: usize,
    /// Limits the load on upstreams.
    pub(crate) limiter: Arc<Limiter>,
    /// Permits of builds.
    pub(crate) builds: Arc<Semaphore>,
    pub(super) concurrent_builds: usize,
    /// Permits to resolve refs: after a start all mirrors are opened.
    pub(super) ref_lookups: Arc<Semaphore>,
    /// The permit of maintenance: one mirror at a time leaves processor time for builds.
    pub(super) maintenance: Arc<Semaphore>,
    /// The permits to make mirrors from bundles, and to store them before they move.
    pub(super) mirror_transfers: Arc<Semaphore>,
    /// The largest mirror to store as bundles, in bytes. `None`: no mirror is stored.
    pub(super) max_stored_mirror: Option<u64>,
    /// Until when polls and fetches may begin.
    pub(crate) validity: Validity,
    /// Takes the names of services before they are published. `None`: this origin is the only one.
    pub(super) names: Option<ServiceNames>,
    /// What the sources share.
    pub(crate) sources: Arc<SourceContext>,
    /// The sources themselves, for composed services.
    pub(crate) part_sources: Arc<PartSources>,
}

impl Context {
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
        let sources = SourceContext {
            data_dir: data_dir.clone(),
            metrics: metrics.source.clone(),
            clocks: metrics.clocks.clone(),
            limits: limits.tarball(),
            min_free: limits.min_free.as_u64(),
            fetch_memory: fetch_memory(upstreams, &metrics.bounds),
            upstreams: upstreams.clone(),
        };
        let sources = Arc::new(sources);
        let published = PublishedParts::new(publisher.clone(), sources.clone());
        published.show(&metrics.bounds);
        Self {
            data_dir,
            log,
            build_threads: limits.build_threads,
            limiter,
            builds,
            concurrent_builds: limits.concurrent_builds,
            ref_lookups: metrics.bounds.semaphore("ref_lookups", CONCURRENT_RESOLUTIONS),
            maintenance: Arc::new(Semaphore::new(1)),
            mirror_transfers: metrics.bounds.semaphore("mirror_transfers", CONCURRENT_TRANSFERS),
            max_stored_mirror: None,
            validity: Validity::always(),
            names: None,
            part_sources: Arc::new(PartSources::new(published)),
            publisher,
            sources,
            metrics,
        }
    }

    /// Begins polls and fetches only while the session is valid, and takes the names of services.
    pub(crate) fn in_cluster(self, validity: Validity, names: ServiceNames) -> Self {
        self.part_sources.in_cluster(names.clone());
        Self { validity, names: Some(names), ..self }
    }

    /// Stores mirrors of at most this many bytes as bundles.
    pub(crate) fn storing_mirrors(self, max_mirror: Option<u64>) -> Self {
        Self { max_stored_mirror: max_mirror, ..self }
    }
}
