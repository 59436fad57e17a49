//! The metrics of an agent: aggregated over all services, or per service with `metrics_by_service`.

mod service_gauge;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use weir_protocol::name::ServiceName;
use weir_protocol::observed::TransferKind;
use weir_runtime::metric_families;

pub(crate) use self::service_gauge::ServiceGauge;
use self::service_gauge::ServiceGauges;

/// The label that `metrics_by_service` adds.
const SERVICE: &str = "service";

/// The kinds of events, as on the wire.
const EVENTS: [&str; 6] = ["changed", "assigned", "unassigned", "upstream", "heartbeat", "resync"];

/// The parts of an update.
const UPDATE_PARTS: [&str; 7] = ["wait", "fetch", "unpack", "sync", "check", "switch", "hook"];

/// The kinds of errors of polls, and of a panic.
pub(crate) const ERROR_KINDS: [&str; 20] = [
    "connect",
    "certificate",
    "silent",
    "slow",
    "closed",
    "broken",
    "token",
    "status",
    "unauthorized",
    "answer",
    "generation",
    "signature",
    "verify",
    "too_large",
    "disk",
    "unpack",
    "check",
    "dependency",
    "labels",
    "panic",
];

/// Why a publication or a freshness statement proves nothing.
pub(crate) const PROOF_FAILURES: [&str; 10] = [
    "no_keys",
    "malformed",
    "unsigned",
    "signature",
    "service",
    "selector",
    "digest",
    "generation",
    "future",
    "replayed",
];

/// The results of a hook.
const HOOK_RESULTS: [&str; 4] = ["success", "failure", "timeout", "error"];

metric_families! {
    /// The families of an agent. Without `metrics_by_service` none has the label `service`: counters are sums over all
    /// services, and gauges are those of the worst service.
    pub(crate) struct AgentMetrics {
        /// Polls and forced refreshes.
        polls: IntCounterVec = "weir_agent_polls_total" { service, result: ["unchanged", "changed", "error"] };
        /// Batch polls: one request for all services. `unavailable`: no edge offers them to this agent, because the edge is
        /// older or cannot identify the agent. Then, and after an `error`, services are polled one by one.
        batch_polls: IntCounterVec = "weir_agent_batch_polls_total"
            { result: ["changed", "unchanged", "unavailable", "error"] };
        /// Events that were received.
        events: IntCounterVec = "weir_agent_events_total" { event: EVENTS };
        /// 1 while an edge sends events. Without them changes arrive with the next poll.
        pub(crate) event_stream_connected: IntGauge = "weir_agent_event_stream_connected";
        /// Event streams that were silent for longer than three heartbeats and were opened again. Alert when it goes on growing: a
        /// proxy on the way may hold back what edges send, and changes arrive with the polls alone.
        pub(crate) event_streams_silent: IntCounter = "weir_agent_event_streams_silent_total";
        /// Messages to the edge in use about what this agent runs. `resync`: the edge lacked earlier ones, so all rows follow.
        /// `deferred`: the edge has no room or is busy. `unavailable`: it is older, or does not know who sends. Alert when only
        /// `deferred` grows.
        observed: IntCounterVec = "weir_agent_observed_messages_total"
            { result: ["accepted", "resync", "deferred", "unavailable", "error"] };
        /// Rows of services that the edge in use does not have yet.
        pub(crate) observed_unsent: IntGauge = "weir_agent_observed_rows_unsent";
        /// Services that are followed.
        pub(crate) services: IntGauge = "weir_agent_services";
        /// Services that are assigned to this agent, and that its `allow` excludes. `not_allowed` of `/status` names them.
        pub(crate) services_not_allowed: IntGauge = "weir_agent_services_not_allowed";
        /// Requests that edges answered, by protocol.
        requests: IntCounterVec = "weir_agent_requests_total" { protocol: ["h3", "h2"] };
        /// Failed attempts at one edge; the poll may succeed at the next edge. `token`: the token's file cannot be used.
        /// `panic`: a bug, please report it.
        errors: IntCounterVec = "weir_agent_errors_total" { kind: ERROR_KINDS };
        /// Seconds of the parts of updates, in their order. `wait`: from an event until the agent polls (`spread`). `fetch`: until
        /// the tarball is verified, composed of frames or downloaded, with the wait for other downloads and for edges that fail.
        /// `unpack`: until all files are written or taken of the release before. `sync`: until they are on disk. `check`, then
        /// `switch`. `hook`: each run of the hooks after it. Of polls that found nothing there is none.
        update_seconds: HistogramVec = "weir_agent_update_seconds" { part: UPDATE_PARTS }
            [0.1, 0.5, 2.5, 10.0, 60.0];
        /// Bytes of tarballs as they were received: of whole bodies, of deltas, or of frames that the release on disk lacked, with
        /// their manifests.
        fetched_bytes: IntCounterVec = "weir_agent_fetched_bytes_total" { kind: TransferKind::LABELS };
        /// Downloads that were cut off and continued: an edge sent the rest.
        pub(crate) resumed_downloads: IntCounter = "weir_agent_resumed_downloads_total";
        /// Bytes that were not fetched again because downloads were continued.
        pub(crate) resumed_bytes: IntCounter = "weir_agent_resumed_bytes_total";
        /// Bytes of tarballs after decoding.
        pub(crate) tarball_bytes: IntCounter = "weir_agent_tarball_bytes_total";
        /// Deltas (`dcz`) that edges sent. `modified`: the release on disk was changed, so the delta cannot be applied.
        /// `refused`: the result was wrong. After both the agent downloads the whole tarball.
        deltas: IntCounterVec = "weir_agent_deltas_total" { result: ["applied", "modified", "refused"] };
        /// Updates for which only frames that the release on disk lacked were to be fetched. `abandoned`: a request failed, or
        /// the bytes were wrong. After a request that failed the next edge is tried, or the same one later; all others, and a
        /// second failure, end in a whole download. `unavailable`: the edge has no manifest. `modified`: files on disk were
        /// changed.
        frame_updates: IntCounterVec = "weir_agent_frame_updates_total"
            { result: ["applied", "abandoned", "unavailable", "modified"] };
        /// Frames that were taken from the release on disk instead of an edge.
        pub(crate) reused_frames: IntCounter = "weir_agent_reused_frames_total";
        /// Responses rejected because their generation was lower than one seen before.
        generation_regressions: IntCounterVec = "weir_agent_generation_regressions_total" { service };
        /// Tarballs rejected because their bytes did not match their digest.
        verify_failures: IntCounterVec = "weir_agent_verify_failures_total" { service };
        /// Forced refreshes that succeeded.
        refreshes: IntCounterVec = "weir_agent_refreshes_total" { service };
        /// Forced refreshes that found a change which polls had missed.
        refresh_missed_change: IntCounterVec = "weir_agent_refresh_missed_change_total" { service };
        /// Forced refreshes that replaced changed files on disk, and polls that found `current` or its release missing.
        refresh_repaired: IntCounterVec = "weir_agent_refresh_repaired_total" { service };
        /// Switches of `current` to another release.
        switches: IntCounterVec = "weir_agent_switches_total" { service };
        /// When an edge last confirmed the release or sent a new one, in Unix seconds; the oldest of all services. 0: a
        /// service never succeeded.
        last_success: GaugeVec = "weir_agent_last_success_timestamp_seconds" { service };
        /// Runs of the hooks after a switch: `exec`, `touch`, `signal`, `webhook`. One run is all that a service has.
        hook_runs: IntCounterVec = "weir_agent_hook_runs_total" { service, result: HOOK_RESULTS };
        /// Runs of `check`. All but `success` prevent a switch.
        check_runs: IntCounterVec = "weir_agent_check_runs_total" { service, result: HOOK_RESULTS };
        /// Old releases that cannot be removed and take disk space: a hook gave files to another user, or mounted something
        /// there. The log says which. Alert above 0.
        unremoved_releases: GaugeVec = "weir_agent_releases_unremoved" { service };
        /// Services that `weir-agent rollback` holds at a release.
        pinned: GaugeVec = "weir_agent_pinned" { service };
        /// When the hooks last succeeded, in Unix seconds; the oldest of all services with hooks. Survives restarts. 0: the
        /// hooks of a service never succeeded.
        hook_last_success: GaugeVec = "weir_agent_hook_last_success_timestamp_seconds" { service };
        /// Services whose current release waits for its hooks.
        hook_pending: GaugeVec = "weir_agent_hook_pending" { service };
        /// Publications and freshness statements that were rejected, because they do not satisfy `trust`.
        proof_failures: IntCounterVec = "weir_agent_proof_failures_total" { service, reason: PROOF_FAILURES };
        /// The signed time at which the release was last proved to be current, in Unix seconds; the oldest of all services
        /// with `trust`. 0: one was never proved.
        proof_current_at: GaugeVec = "weir_agent_proof_current_timestamp_seconds" { service };
        /// Services with `trust` that are degraded because freshness statements are rejected, old or missing, or because an
        /// update is withheld.
        proof_degraded: GaugeVec = "weir_agent_proof_degraded" { service };
        /// Services whose origin cannot reach the upstream: with `trust` by its newest statement, else by the events of an
        /// edge.
        upstream_unreachable: GaugeVec = "weir_agent_upstream_unreachable" { service };
        /// 1 when the file of keys was read, 0 when its last change cannot be used.
        pub(crate) trust_file_readable: IntGaugeVec = "weir_agent_trust_file_readable" { file };
        /// When a credential ends, in Unix seconds: the agent's certificate, its token, and the last authority of `ca`. Alert
        /// before, if nothing renews it.
        pub(crate) credential_not_after: IntGaugeVec = "weir_agent_credential_not_after_timestamp_seconds"
            { credential: ["certificate", "token", "authority"] };
        /// Reloads by SIGHUP, of a changed configuration file, and of changed certificates and keys. `refused`: nothing has
        /// changed; the log has the reason.
        /// Files that cannot be used are retried and counted once.
        pub(crate) reloads: IntCounterVec = "weir_agent_reloads_total" { result: ["applied", "refused"] };
        /// 1 from a reload that was refused until one works. `/readyz` has the reason.
        pub(crate) reload_refused: IntGauge = "weir_agent_reload_refused";
    }
}

metric_families! {
    /// The families that cannot be aggregated over services.
    pub(crate) struct GenerationMetrics {
        /// Generation of the current release. Only with `metrics_by_service`.
        generation: IntGaugeVec = "weir_agent_generation" { service };
    }
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
    proof_current_at: ServiceGauges,
    proof_degraded: ServiceGauges,
    upstream_unreachable: ServiceGauges,
    pinned: ServiceGauges,
    unremoved_releases: ServiceGauges,
}

impl std::ops::Deref for Metrics {
    type Target = AgentMetrics;

    fn deref(&self) -> &AgentMetrics {
        &self.families
    }
}

impl Metrics {
    /// A credential ends at this time.
    pub(crate) fn credential_ends(&self, credential: &str, ends: SystemTime) {
        let seconds = ends.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let gauge = self.families.credential_not_after.with_label_values(&[credential]);
        gauge.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

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
            proof_current_at: gauges(&families.proof_current_at, f64::min),
            proof_degraded: gauges(&families.proof_degraded, std::ops::Add::add),
            upstream_unreachable: gauges(&families.upstream_unreachable, std::ops::Add::add),
            pinned: gauges(&families.pinned, std::ops::Add::add),
            unremoved_releases: gauges(&families.unremoved_releases, std::ops::Add::add),
            families,
        })
    }

    /// The counter of a service, or the one that all services share.
    fn counter_of(&self, counters: &IntCounterVec, service: &ServiceName, value: Option<&str>) -> IntCounter {
        let values: Vec<&str> = self.by_service.then_some(service.as_str()).into_iter().chain(value).collect();
        counters.with_label_values(&values)
    }

    /// An edge answered.
    pub(crate) fn answered(&self, protocol: &str) {
        self.requests.with_label_values(&[protocol]).inc();
    }

    /// An edge sent a delta.
    pub(crate) fn delta(&self, result: &str) {
        self.deltas.with_label_values(&[result]).inc();
    }

    /// Bytes of a tarball have arrived.
    pub(crate) fn fetched(&self, kind: TransferKind, bytes: u64) {
        self.fetched_bytes.with_label_values(&[kind.as_str()]).inc_by(bytes);
    }

    /// An update by frames has ended.
    pub(crate) fn frame_update(&self, result: &str) {
        self.frame_updates.with_label_values(&[result]).inc();
    }

    /// A part of an update has ended.
    pub(crate) fn update_part(&self, part: &str, took: Duration) {
        debug_assert!(UPDATE_PARTS.contains(&part), "{part}");
        self.update_seconds.with_label_values(&[part]).observe(took.as_secs_f64());
    }

    /// A batch poll has ended.
    pub(crate) fn batch_polled(&self, result: &str) {
        self.batch_polls.with_label_values(&[result]).inc();
    }

    /// An event has arrived.
    pub(crate) fn event(&self, event: &str) {
        self.events.with_label_values(&[event]).inc();
    }

    /// A message about what the agent runs was sent.
    pub(crate) fn observed(&self, result: &str) {
        self.observed.with_label_values(&[result]).inc();
    }

    /// Ends the gauges of a service that is no longer followed.
    pub(crate) fn forget(&self, service: &ServiceName) {
        let gauges = [
            &self.last_success,
            &self.hook_last_success,
            &self.hook_pending,
            &self.proof_current_at,
            &self.proof_degraded,
            &self.upstream_unreachable,
            &self.pinned,
            &self.unremoved_releases,
        ];
        gauges.iter().for_each(|gauges| gauges.forget(service));
        // A service that never began has no series.
        let _ = self.generation.remove_label_values(&[service.as_str()]);
    }

    /// An attempt at an edge failed.
    pub(crate) fn attempt_failed(&self, kind: &str) {
        debug_assert!(ERROR_KINDS.contains(&kind), "{kind}");
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
            pinned: self.pinned.of(service),
            unremoved_releases: self.unremoved_releases.of(service),
        }
    }

    /// Whether the origin of a service cannot reach the upstream.
    pub(crate) fn upstream_unreachable(&self, service: &ServiceName) -> ServiceGauge {
        self.upstream_unreachable.of(service)
    }

    /// The series of one service with `trust`.
    pub(crate) fn proof(&self, service: &ServiceName) -> ProofMetrics {
        ProofMetrics {
            current_at: self.proof_current_at.of(service),
            degraded: self.proof_degraded.of(service),
            upstream_unreachable: self.upstream_unreachable(service),
            failures: PROOF_FAILURES
                .map(|reason| (reason, self.counter_of(&self.proof_failures, service, Some(reason))))
                .into(),
        }
    }

    /// The series of one service's `check`.
    pub(crate) fn check(&self, service: &ServiceName) -> CheckMetrics {
        CheckMetrics(self.results(&self.check_runs, service))
    }

    fn results(&self, counters: &IntCounterVec, service: &ServiceName) -> Results {
        HOOK_RESULTS.map(|result| (result, self.counter_of(counters, service, Some(result))))
    }

    /// The series of one service's hooks. A service without hooks has none, because 0 would mean that it never
    /// succeeded.
    pub(crate) fn hook(&self, service: &ServiceName) -> HookMetrics {
        HookMetrics {
            runs: self.results(&self.hook_runs, service),
            seconds: self.update_seconds.with_label_values(&["hook"]),
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
    pub(crate) pinned: ServiceGauge,
    pub(crate) unremoved_releases: ServiceGauge,
}

/// The families of one service with `trust`.
#[derive(Clone)]
pub(crate) struct ProofMetrics {
    pub(crate) current_at: ServiceGauge,
    pub(crate) degraded: ServiceGauge,
    pub(crate) upstream_unreachable: ServiceGauge,
    failures: Arc<[(&'static str, IntCounter)]>,
}

impl ProofMetrics {
    /// A publication or a statement was refused.
    pub(crate) fn refused(&self, reason: &str) {
        let counter = self.failures.iter().find(|(name, _)| *name == reason);
        debug_assert!(counter.is_some(), "{reason}");
        counter.inspect(|(_, counter)| counter.inc());
    }
}

type Results = [(&'static str, IntCounter); HOOK_RESULTS.len()];

/// The families of one service's hooks.
#[derive(Clone)]
pub(crate) struct HookMetrics {
    runs: Results,
    /// Of each run.
    pub(crate) seconds: Histogram,
    pub(crate) last_success: ServiceGauge,
    pub(crate) pending: ServiceGauge,
}

impl HookMetrics {
    pub(crate) fn ran(&self, result: &str) {
        count(&self.runs, result);
    }
}

/// The runs of one service's `check`.
#[derive(Clone)]
pub(crate) struct CheckMetrics(Results);

impl CheckMetrics {
    pub(crate) fn ran(&self, result: &str) {
        count(&self.0, result);
    }
}

fn count(runs: &Results, result: &str) {
    debug_assert!(HOOK_RESULTS.contains(&result), "{result}");
    runs.iter().filter(|(known, _)| *known == result).for_each(|(_, counter)| counter.inc());
}

/// Seconds since 1970, as timestamps are shown.
pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
