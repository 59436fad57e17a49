//! The metrics of an agent: aggregated over all services, or per service with `metrics_by_service`.

mod service_gauge;

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use weir_protocol::name::ServiceName;
use weir_runtime::metric_families;
use weir_runtime::metric_families::Family;

use self::service_gauge::{ServiceGauge, ServiceGauges};
use crate::edge_client::Protocol;
use crate::poll::PollError;

/// The label that `metrics_by_service` adds.
const SERVICE: &str = "service";

metric_families! {
    /// The families of an agent. Without `metrics_by_service` none has the label `service`: counters are sums over all
    /// services, and gauges are those of the worst service.
    pub(crate) struct AgentMetrics {
        /// Polls and forced refreshes.
        polls: IntCounterVec = "weir_agent_polls_total" { service, result: ["unchanged", "changed", "error"] };
        /// Requests that edges answered, by protocol.
        requests: IntCounterVec = "weir_agent_requests_total" { protocol: ["h3", "h2"] };
        /// Failed attempts at one edge; the poll may succeed at the next edge. `token`: the token's file cannot be used.
        /// `panic`: a bug, please report it.
        errors: IntCounterVec = "weir_agent_errors_total" { kind: PollError::KINDS };
        /// Bytes of tarballs as they were received.
        pub(crate) fetched_bytes: IntCounter = "weir_agent_fetched_bytes_total";
        /// Bytes of tarballs after decoding.
        pub(crate) tarball_bytes: IntCounter = "weir_agent_tarball_bytes_total";
        /// Deltas (`dcz`) that edges sent. `modified`: the release on disk was changed, so the delta is of no use. `refused`:
        /// the bytes were wrong. After both the whole tarball is fetched.
        deltas: IntCounterVec = "weir_agent_deltas_total" { result: ["applied", "modified", "refused"] };
        /// 1 when the last connection used HTTP/3. 0 when only HTTP/2 worked, or nothing was tried yet.
        pub(crate) http3_usable: IntGauge = "weir_agent_http3_usable";
        /// Responses refused because their generation was lower than one seen before.
        generation_regressions: IntCounterVec = "weir_agent_generation_regressions_total" { service };
        /// Tarballs refused because their bytes did not have their digest.
        verify_failures: IntCounterVec = "weir_agent_verify_failures_total" { service };
        /// Forced refreshes that succeeded.
        refreshes: IntCounterVec = "weir_agent_refreshes_total" { service };
        /// Forced refreshes that found a change which polls had missed.
        refresh_missed_change: IntCounterVec = "weir_agent_refresh_missed_change_total" { service };
        /// Forced refreshes that found changed files on disk and replaced them.
        refresh_repaired: IntCounterVec = "weir_agent_refresh_repaired_total" { service };
        /// Switches of `current` to another release.
        switches: IntCounterVec = "weir_agent_switches_total" { service };
        /// When an edge last confirmed the release or sent a new one, in Unix seconds; the oldest of all services. 0: a
        /// service never succeeded.
        last_success: GaugeVec = "weir_agent_last_success_timestamp_seconds" { service };
        /// Runs of `exec`.
        hook_runs: IntCounterVec = "weir_agent_hook_runs_total"
            { service, result: ["success", "failure", "timeout", "error"] };
        /// When `exec` last succeeded, in Unix seconds; the oldest of all services that have one. Kept over restarts. 0: one
        /// never succeeded.
        hook_last_success: GaugeVec = "weir_agent_hook_last_success_timestamp_seconds" { service };
        /// Services whose current release waits for its `exec`.
        hook_pending: GaugeVec = "weir_agent_hook_pending" { service };
        /// Reloads by SIGHUP. A refused one changes nothing; the log has the reason.
        pub(crate) reloads: IntCounterVec = "weir_agent_reloads_total" { result: ["applied", "refused"] };
    }
}

metric_families! {
    /// The families that cannot be aggregated over services.
    pub(crate) struct GenerationMetrics {
        /// Generation of the current release. Only with `metrics_by_service`.
        generation: IntGaugeVec = "weir_agent_generation" { service };
    }
}

/// The table of an agent's families, for the reference.
pub fn families() -> Vec<Family> {
    [AgentMetrics::FAMILIES, GenerationMetrics::FAMILIES].concat()
}

/// An agent's metrics. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    by_service: bool,
    families: AgentMetrics,
    generation: IntGaugeVec,
    last_success: ServiceGauges,
    hook_last_success: ServiceGauges,
    hook_pending: ServiceGauges,
}

impl std::ops::Deref for Metrics {
    type Target = AgentMetrics;

    fn deref(&self) -> &AgentMetrics {
        &self.families
    }
}

impl Metrics {
    /// Registers the families. `by_service`: with the label `service`, which the configuration bounds.
    ///
    /// # Errors
    /// They were registered there before.
    pub(crate) fn register(registry: &Registry, by_service: bool) -> prometheus::Result<Self> {
        let families = AgentMetrics::register_without(registry, if by_service { "" } else { SERVICE })?;
        let generation =
            if by_service { GenerationMetrics::register(registry)? } else { GenerationMetrics::build("")? };
        let gauges = |shown: &GaugeVec, fold| ServiceGauges::new(shown.clone(), by_service, fold);
        Ok(Self {
            by_service,
            generation: generation.generation,
            // The oldest time, so that an alert on age sees the worst service.
            last_success: gauges(&families.last_success, f64::min),
            hook_last_success: gauges(&families.hook_last_success, f64::min),
            hook_pending: gauges(&families.hook_pending, std::ops::Add::add),
            families,
        })
    }

    /// The counter of a service, or the one that all services share.
    fn counter_of(&self, counters: &IntCounterVec, service: &ServiceName, value: Option<&str>) -> IntCounter {
        let values: Vec<&str> = self.by_service.then_some(service.as_str()).into_iter().chain(value).collect();
        counters.with_label_values(&values)
    }

    /// An edge answered.
    pub(crate) fn answered(&self, protocol: Protocol) {
        self.requests.with_label_values(&[protocol.as_str()]).inc();
    }

    /// An edge sent a delta.
    pub(crate) fn delta(&self, result: &str) {
        self.deltas.with_label_values(&[result]).inc();
    }

    /// An attempt at an edge failed.
    pub(crate) fn attempt_failed(&self, kind: &str) {
        debug_assert!(PollError::KINDS.contains(&kind), "{kind}");
        self.errors.with_label_values(&[kind]).inc();
    }

    /// The series of one service. All exist from the start, so that `rate()` sees their first increase.
    pub(crate) fn service(&self, service: &ServiceName) -> ServiceMetrics {
        let of = |counters: &IntCounterVec| self.counter_of(counters, service, None);
        let polls = |result| self.counter_of(&self.polls, service, Some(result));
        ServiceMetrics {
            polls_unchanged: polls("unchanged"),
            polls_changed: polls("changed"),
            polls_error: polls("error"),
            generation_regressions: of(&self.generation_regressions),
            verify_failures: of(&self.verify_failures),
            refreshes: of(&self.refreshes),
            refresh_missed_change: of(&self.refresh_missed_change),
            refresh_repaired: of(&self.refresh_repaired),
            switches: of(&self.switches),
            last_success: self.last_success.of(service),
            generation: self.generation.with_label_values(&[service.as_str()]),
            hook_pending: self.hook_pending.of(service),
        }
    }

    /// The series of one service's `exec`. A service without `exec` has none, because 0 would mean that it never
    /// succeeded.
    pub(crate) fn hook(&self, service: &ServiceName) -> HookMetrics {
        let runs = |result| self.counter_of(&self.hook_runs, service, Some(result));
        HookMetrics {
            success: runs("success"),
            failure: runs("failure"),
            timeout: runs("timeout"),
            error: runs("error"),
            last_success: self.hook_last_success.of(service),
            pending: self.hook_pending.of(service),
        }
    }
}

/// The families of one service.
#[derive(Clone)]
pub(crate) struct ServiceMetrics {
    pub(crate) polls_unchanged: IntCounter,
    pub(crate) polls_changed: IntCounter,
    pub(crate) polls_error: IntCounter,
    pub(crate) generation_regressions: IntCounter,
    pub(crate) verify_failures: IntCounter,
    pub(crate) refreshes: IntCounter,
    pub(crate) refresh_missed_change: IntCounter,
    pub(crate) refresh_repaired: IntCounter,
    pub(crate) switches: IntCounter,
    pub(crate) last_success: ServiceGauge,
    pub(crate) generation: IntGauge,
    pub(crate) hook_pending: ServiceGauge,
}

/// The families of one service's `exec`.
#[derive(Clone)]
pub(crate) struct HookMetrics {
    pub(crate) success: IntCounter,
    pub(crate) failure: IntCounter,
    pub(crate) timeout: IntCounter,
    pub(crate) error: IntCounter,
    pub(crate) last_success: ServiceGauge,
    pub(crate) pending: ServiceGauge,
}

/// Seconds since 1970, as timestamps are shown.
pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
