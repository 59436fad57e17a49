//! What an agent counts: over all services together, or by service where the configuration asks for it.

mod fold;

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::core::Collector;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use weir_shared::name::ServiceName;

use self::fold::{Fold, Folded, SERVICE};
use crate::edge_client::Protocol;
use crate::poll::PollError;

/// The agent's families. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
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
    last_success: GaugeVec,
    generation: IntGaugeVec,
    hook_runs: IntCounterVec,
    hook_last_success: GaugeVec,
    hook_pending: IntGaugeVec,
}

impl Metrics {
    /// Registers the families. `by_service`: with the label `service`, which the configuration bounds; else each family
    /// speaks of all services together.
    ///
    /// # Errors
    /// They were registered there before.
    pub(crate) fn register(registry: &Registry, by_service: bool) -> prometheus::Result<Self> {
        fn add<C: Collector + Clone + 'static>(registry: &Registry, family: C) -> prometheus::Result<C> {
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        }
        fn add_services<C>(registry: &Registry, family: C, fold: Option<Fold>) -> prometheus::Result<C>
        where
            C: Collector + Clone + 'static,
        {
            match fold {
                None => add(registry, family),
                Some(fold) => {
                    registry.register(Box::new(Folded::new(family.clone(), fold)))?;
                    Ok(family)
                }
            }
        }
        let folded = |fold| (!by_service).then_some(fold);
        let plain =
            |name: &str, help: &str, label: &str| add(registry, IntCounterVec::new(Opts::new(name, help), &[label])?);
        let counter = |name: &str, help: &str, labels: &[&str]| {
            add_services(registry, IntCounterVec::new(Opts::new(name, help), labels)?, folded(Fold::Sum))
        };
        let time = |name: &str, help: &str| {
            add_services(registry, GaugeVec::new(Opts::new(name, help), &[SERVICE])?, folded(Fold::Oldest))
        };
        let int_gauge = |name: &str, help: &str, fold| {
            add_services(registry, IntGaugeVec::new(Opts::new(name, help), &[SERVICE])?, folded(fold))
        };
        let errors = plain("weir_agent_errors_total", "Attempts at an edge that failed, by kind.", "kind")?;
        for kind in PollError::KINDS {
            errors.with_label_values(&[kind]);
        }
        Ok(Self {
            polls: counter(
                "weir_agent_polls_total",
                "Polls, by result (unchanged, changed, error).",
                &[SERVICE, "result"],
            )?,
            requests: plain("weir_agent_requests_total", "Requests that edges answered, by protocol.", "protocol")?,
            errors,
            fetched_bytes: add(
                registry,
                IntCounter::new("weir_agent_fetched_bytes_total", "Bytes of tarballs as they came over the wire.")?,
            )?,
            tarball_bytes: add(
                registry,
                IntCounter::new("weir_agent_tarball_bytes_total", "Bytes of tarballs after decoding.")?,
            )?,
            http3_usable: add(
                registry,
                IntGauge::new("weir_agent_http3_usable", "1 when HTTP/3 got through last, 0 when only HTTP/2 did.")?,
            )?,
            generation_regressions: counter(
                "weir_agent_generation_regressions_total",
                "Answers refused because their generation was lower than one seen before.",
                &[SERVICE],
            )?,
            verify_failures: counter(
                "weir_agent_verify_failures_total",
                "Tarballs refused because their bytes were not those of their digest.",
                &[SERVICE],
            )?,
            refreshes: counter("weir_agent_refreshes_total", "Forced refreshes that ended without error.", &[SERVICE])?,
            refresh_missed_change: counter(
                "weir_agent_refresh_missed_change_total",
                "Forced refreshes that found a change which polling had missed.",
                &[SERVICE],
            )?,
            refresh_repaired: counter(
                "weir_agent_refresh_repaired_total",
                "Forced refreshes that found the files on disk changed and replaced them.",
                &[SERVICE],
            )?,
            switches: counter("weir_agent_switches_total", "Switches of `current` to another release.", &[SERVICE])?,
            last_success: time(
                "weir_agent_last_success_timestamp_seconds",
                "When an edge last confirmed the release or a new one was switched to, the oldest of the services; \
                 Unix time, 0 for never.",
            )?,
            generation: int_gauge(
                "weir_agent_generation",
                "The generation of the release that is in force.",
                Fold::Hide,
            )?,
            hook_runs: counter(
                "weir_agent_hook_runs_total",
                "Runs of `exec`, by result (success, failure, timeout, error).",
                &[SERVICE, "result"],
            )?,
            hook_last_success: time(
                "weir_agent_hook_last_success_timestamp_seconds",
                "When `exec` last succeeded, the oldest of the services that have one; Unix time, 0 for never.",
            )?,
            hook_pending: int_gauge(
                "weir_agent_hook_pending",
                "Services whose release in force awaits its `exec`.",
                Fold::Sum,
            )?,
        })
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
        let s = &[service.as_str()];
        let polls = |result| self.polls.with_label_values(&[service.as_str(), result]);
        ServiceMetrics {
            polls_unchanged: polls("unchanged"),
            polls_changed: polls("changed"),
            polls_error: polls("error"),
            generation_regressions: self.generation_regressions.with_label_values(s),
            verify_failures: self.verify_failures.with_label_values(s),
            refreshes: self.refreshes.with_label_values(s),
            refresh_missed_change: self.refresh_missed_change.with_label_values(s),
            refresh_repaired: self.refresh_repaired.with_label_values(s),
            switches: self.switches.with_label_values(s),
            last_success: self.last_success.with_label_values(s),
            generation: self.generation.with_label_values(s),
            hook_pending: self.hook_pending.with_label_values(s),
        }
    }

    /// The families of one service's `exec`. A service without one has none of them: it would be one that never
    /// succeeded.
    pub(crate) fn hook(&self, service: &ServiceName) -> HookMetrics {
        let runs = |result| self.hook_runs.with_label_values(&[service.as_str(), result]);
        HookMetrics {
            success: runs("success"),
            failure: runs("failure"),
            timeout: runs("timeout"),
            error: runs("error"),
            last_success: self.hook_last_success.with_label_values(&[service.as_str()]),
            pending: self.hook_pending.with_label_values(&[service.as_str()]),
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
    pub(crate) last_success: prometheus::Gauge,
    pub(crate) generation: IntGauge,
    pub(crate) hook_pending: IntGauge,
}

/// The families of one service's `exec`.
#[derive(Clone)]
pub(crate) struct HookMetrics {
    pub(crate) success: IntCounter,
    pub(crate) failure: IntCounter,
    pub(crate) timeout: IntCounter,
    pub(crate) error: IntCounter,
    pub(crate) last_success: prometheus::Gauge,
    pub(crate) pending: IntGauge,
}

/// Seconds since 1970, as timestamps are shown.
pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
