//! What an agent counts: over all services together, or by service where the configuration asks for it.

mod service_gauge;

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use weir_protocol::name::ServiceName;
use weir_runtime::metric_families::MetricFamilies;

use self::service_gauge::{ServiceGauge, ServiceGauges};
use crate::edge_client::Protocol;
use crate::poll::PollError;

/// The label that tells services apart, where the configuration asks for it.
const SERVICE: &str = "service";

/// The agent's families. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    by_service: bool,
    polls: IntCounterVec,
    requests: IntCounterVec,
    errors: IntCounterVec,
    pub(crate) fetched_bytes: IntCounter,
    pub(crate) tarball_bytes: IntCounter,
    pub(crate) http3_usable: IntGauge,
    generation_regressions: IntCounterVec,
    verify_failures: IntCounterVec,
    refreshes: IntCounterVec,
    refresh_missed_change: IntCounterVec,
    refresh_repaired: IntCounterVec,
    switches: IntCounterVec,
    last_success: ServiceGauges,
    generation: IntGaugeVec,
    hook_runs: IntCounterVec,
    hook_last_success: ServiceGauges,
    hook_pending: ServiceGauges,
}

impl Metrics {
    /// Registers the families. `by_service`: with the label `service`, which the configuration bounds; else each family
    /// speaks of all services together.
    ///
    /// # Errors
    /// They were registered there before.
    pub(crate) fn register(registry: &Registry, by_service: bool) -> prometheus::Result<Self> {
        let families = MetricFamilies(registry);
        let counter = |name: &str, help: &str, label: Option<&str>| {
            let labels: Vec<&str> = by_service.then_some(SERVICE).into_iter().chain(label).collect();
            families.counters(name, help, &labels)
        };
        // Of times the oldest, so that an alert on age sees the service that is worst off.
        let time = |name: &str, help: &str| ServiceGauges::register(families, name, help, by_service, f64::min);
        let generation = Opts::new("weir_agent_generation", "The generation of the release that is in force.");
        let generation = IntGaugeVec::new(generation, &[SERVICE])?;
        if by_service {
            // It says nothing about all services together.
            families.add(generation.clone())?;
        }
        Ok(Self {
            by_service,
            polls: counter("weir_agent_polls_total", "Polls, by result (unchanged, changed, error).", Some("result"))?,
            requests: families.counters(
                "weir_agent_requests_total",
                "Requests that edges answered, by protocol.",
                &["protocol"],
            )?,
            errors: families.counters_of(
                "weir_agent_errors_total",
                "Attempts at an edge that failed, by kind.",
                "kind",
                &PollError::KINDS,
            )?,
            fetched_bytes: families
                .counter("weir_agent_fetched_bytes_total", "Bytes of tarballs as they came over the wire.")?,
            tarball_bytes: families.counter("weir_agent_tarball_bytes_total", "Bytes of tarballs after decoding.")?,
            http3_usable: families
                .gauge("weir_agent_http3_usable", "1 when HTTP/3 got through last, 0 when only HTTP/2 did.")?,
            generation_regressions: counter(
                "weir_agent_generation_regressions_total",
                "Answers refused because their generation was lower than one seen before.",
                None,
            )?,
            verify_failures: counter(
                "weir_agent_verify_failures_total",
                "Tarballs refused because their bytes were not those of their digest.",
                None,
            )?,
            refreshes: counter("weir_agent_refreshes_total", "Forced refreshes that ended without error.", None)?,
            refresh_missed_change: counter(
                "weir_agent_refresh_missed_change_total",
                "Forced refreshes that found a change which polling had missed.",
                None,
            )?,
            refresh_repaired: counter(
                "weir_agent_refresh_repaired_total",
                "Forced refreshes that found the files on disk changed and replaced them.",
                None,
            )?,
            switches: counter("weir_agent_switches_total", "Switches of `current` to another release.", None)?,
            last_success: time(
                "weir_agent_last_success_timestamp_seconds",
                "When an edge last confirmed the release or a new one was switched to, the oldest of the services; \
                 Unix time, 0 for never.",
            )?,
            generation,
            hook_runs: counter(
                "weir_agent_hook_runs_total",
                "Runs of `exec`, by result (success, failure, timeout, error).",
                Some("result"),
            )?,
            hook_last_success: time(
                "weir_agent_hook_last_success_timestamp_seconds",
                "When `exec` last succeeded, the oldest of the services that have one; Unix time, 0 for never.",
            )?,
            hook_pending: ServiceGauges::register(
                families,
                "weir_agent_hook_pending",
                "Services whose release in force awaits its `exec`.",
                by_service,
                std::ops::Add::add,
            )?,
        })
    }

    /// The counter of a service, or of all services together: they add to the same one.
    fn counter_of(&self, counters: &IntCounterVec, service: &ServiceName, value: Option<&str>) -> IntCounter {
        let values: Vec<&str> = self.by_service.then_some(service.as_str()).into_iter().chain(value).collect();
        counters.with_label_values(&values)
    }

    /// An edge answered.
    pub(crate) fn answered(&self, protocol: Protocol) {
        self.requests.with_label_values(&[protocol.as_str()]).inc();
    }

    /// An attempt at an edge failed.
    pub(crate) fn attempt_failed(&self, kind: &str) {
        debug_assert!(PollError::KINDS.contains(&kind), "{kind}");
        self.errors.with_label_values(&[kind]).inc();
    }

    /// The families, for one service: all its children exist from the start, so that rates can be taken of them.
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

    /// The families of one service's `exec`. A service without one has none of them: it would be one that never
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
