//! Tells the edges which releases are in place: on a change, to each run of an edge, and every ten minutes. Nothing depends
//! on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderValue, StatusCode};
use weir_protocol::labels::Labels;
use weir_protocol::name::ServiceName;
use weir_protocol::report::{HookState as ReportedHook, INTERVAL_SECONDS, Instance, Report, ServiceReport};
use weir_protocol::route::Route;
use weir_runtime::shutdown::Drain;

use crate::edge_client::EdgeClient;
use crate::metrics::Metrics;
use crate::roster::Services;
use crate::status::{HookState, ServiceStatus};
use crate::supervise::Task;

/// The most services in a report that are assigned and not allowed.
const MAX_NOT_ALLOWED: usize = 100;

/// The time between two looks for changes. Those in between are one report.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The time between two reports without a change.
const INTERVAL: Duration = Duration::from_secs(INTERVAL_SECONDS);

/// A report to another run of an edge is spread over this: all its agents meet it at once.
const MEETING_SPREAD: Duration = Duration::from_secs(10);

/// The task that sends the reports.
pub(crate) struct Reporter {
    services: Arc<Services>,
    edges: Arc<EdgeClient>,
    timeout: Duration,
    labels: Labels,
    instance: Instance,
    seq: u64,
    /// When the agent started.
    started: SystemTime,
    /// What was sent last, and when.
    sent: Option<(Vec<ServiceReport>, Instant)>,
    /// No report before: the last one failed, or another run of an edge was met.
    not_before: Instant,
    /// The run of the edge in use that was met last.
    met: Option<HeaderValue>,
    /// No edge has taken a report since.
    is_unknown: bool,
    metrics: Metrics,
    drain: Drain,
}

/// Whether a report is due. Failed ones are repeated every ten minutes; after a minute with a change, or to a run of an edge
/// that has none.
fn is_due(now: Instant, not_before: Instant, sent: Option<Instant>, is_changed: bool) -> bool {
    now >= not_before && (is_changed || sent.is_none_or(|sent| now.duration_since(sent) >= INTERVAL))
}

/// The row of a service. `before`: its last row.
fn row(
    service: ServiceName,
    status: ServiceStatus,
    before: Option<&ServiceReport>,
    since: SystemTime,
) -> ServiceReport {
    let release = status.release.as_ref();
    let digest = release.map(|release| release.digest);
    ServiceReport {
        since: before.filter(|before| before.digest == digest).map_or(since, |before| before.since),
        service,
        digest,
        generation: release.map(|release| release.generation),
        pinned: status.pinned.is_some(),
        hook: match status.hook {
            HookState::None => ReportedHook::None,
            HookState::Pending => ReportedHook::Pending,
            HookState::Running => ReportedHook::Running,
            HookState::Done => ReportedHook::Succeeded,
            HookState::Failed => ReportedHook::Failed,
        },
        transfer: status.transfer,
        error: status.last_error.or(status.hook_error),
    }
}

/// When a release was switched to: `current` was made then.
fn switched_at(status: &ServiceStatus) -> Option<SystemTime> {
    let service = status.release.as_ref()?.directory.parent()?.parent()?;
    std::fs::symlink_metadata(service.join("current")).ok()?.modified().ok()
}

impl Reporter {
    pub(crate) fn new(
        services: Arc<Services>,
        edges: Arc<EdgeClient>,
        timeout: Duration,
        labels: Labels,
        started: SystemTime,
        metrics: Metrics,
        drain: Drain,
    ) -> Self {
        let instance = format!("{:016x}", fastrand::u64(..)).parse().expect("hex digits");
        Self {
            services,
            edges,
            timeout,
            labels,
            instance,
            seq: 0,
            started,
            sent: None,
            not_before: Instant::now(),
            met: None,
            is_unknown: false,
            metrics,
            drain,
        }
    }

    /// Another run of the edge in use has no report of this agent. The first report of an agent does not wait.
    fn meet(&mut self, met: Option<HeaderValue>, now: Instant, random: f64) {
        if met.is_none() || met == self.met {
            return;
        }
        if self.met.is_some() {
            self.not_before = self.not_before.max(now + MEETING_SPREAD.mul_f64(random));
        }
        (self.met, self.is_unknown) = (met, true);
    }

    fn rows(&self) -> Vec<ServiceReport> {
        let before: BTreeMap<_, _> =
            self.sent.iter().flat_map(|(rows, _)| rows).map(|row| (&row.service, row)).collect();
        let statuses = self.services.statuses().into_iter();
        let row = |(service, status): (ServiceName, ServiceStatus)| {
            let known = before.get(&service).copied();
            let is_known = known.is_some_and(|row| row.digest == status.release.as_ref().map(|release| release.digest));
            let since = if is_known { None } else { switched_at(&status) };
            row(service, status, known, since.unwrap_or(self.started))
        };
        let not_allowed = self.services.not_allowed();
        let not_allowed = not_allowed.iter().take(MAX_NOT_ALLOWED).map(|service| {
            let last_error = Some("not-allowed: it is assigned, and `allow` of this agent excludes it".to_owned());
            (service.clone(), ServiceStatus { last_error, ..ServiceStatus::default() })
        });
        let mut rows: Vec<_> = statuses.chain(not_allowed).map(row).collect();
        rows.sort_unstable_by(|one, other| one.service.cmp(&other.service));
        rows
    }

    /// Sends a report to the first edge that takes it.
    async fn send(&mut self, rows: Vec<ServiceReport>) {
        self.seq += 1;
        let report = Report {
            instance: self.instance.clone(),
            seq: self.seq,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            labels: self.labels.clone(),
            services: rows.clone(),
        };
        let result = match report.to_json() {
            Ok(json) => self.post(json).await,
            Err(error) => {
                tracing::debug!(%error, "the report cannot be encoded");
                "error"
            }
        };
        self.metrics.reported(result);
        let now = Instant::now();
        match result {
            "accepted" => self.is_unknown = false,
            "unavailable" => self.not_before = now + INTERVAL.mul_f64(0.9 + 0.2 * fastrand::f64()),
            _ => self.not_before = now + Duration::from_secs(60).mul_f64(0.5 + fastrand::f64()),
        }
        // Also a report that failed is not repeated before its time.
        self.sent = Some((rows, now));
    }

    async fn post(&self, json: Vec<u8>) -> &'static str {
        let mut result = "error";
        for edge in self.edges.current().in_order() {
            match edge.document(&Route::AgentReport, Some(json.clone()), self.timeout, None).await {
                Ok(response) if response.status.is_success() => return "accepted",
                Ok(response) if response.status == StatusCode::NOT_FOUND => result = "unavailable",
                Ok(response) => {
                    tracing::debug!(edge = %edge.url(), status = response.status.as_u16(), "a report was rejected");
                }
                Err(error) => tracing::debug!(edge = %edge.url(), %error, "a report was not sent"),
            }
        }
        result
    }
}

impl Task for Reporter {
    async fn run(&mut self) {
        loop {
            tokio::select! {
                () = self.drain.begun() => return,
                () = tokio::time::sleep(LOOK_INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64())) => {}
            }
            let met = self.edges.current().preferred().instance();
            self.meet(met, Instant::now(), fastrand::f64());
            let rows = self.rows();
            let is_changed = self.is_unknown || self.sent.as_ref().is_none_or(|(sent, _)| *sent != rows);
            let last = self.sent.as_ref().map(|(_, at)| *at);
            if !is_due(Instant::now(), self.not_before, last, is_changed) {
                continue;
            }
            let drain = self.drain.clone();
            tokio::select! {
                () = drain.begun() => return,
                () = self.send(rows) => {}
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        tracing::error!(error = message, "the task that sends reports panicked, which is a bug");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_silence_make_a_report_due() {
        let now = Instant::now() + INTERVAL;
        assert!(is_due(now, now, None, true));
        assert!(is_due(now, now, Some(now), true) && !is_due(now, now, Some(now), false));
        assert!(is_due(now, now, Some(now - INTERVAL), false));
        assert!(!is_due(now, now + LOOK_INTERVAL, Some(now - INTERVAL), true), "the last one failed a moment ago");
    }

    #[test]
    fn a_row_begins_with_its_release() {
        let (at, later) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + LOOK_INTERVAL);
        let waiting = row("shop".parse().unwrap(), ServiceStatus::default(), None, at);
        assert_eq!((waiting.digest, waiting.since, waiting.hook), (None, at, ReportedHook::None));
        let failing = ServiceStatus { last_error: Some("503".to_owned()), ..ServiceStatus::default() };
        let again = row("shop".parse().unwrap(), failing, Some(&waiting), later);
        assert_eq!((again.since, again.error.as_deref()), (at, Some("503")));
        let other = ServiceReport { digest: Some(weir_protocol::digest::TarballDigest::of(b"one")), ..waiting };
        assert_eq!(row("shop".parse().unwrap(), ServiceStatus::default(), Some(&other), later).since, later);
        let pending = ServiceStatus { hook: HookState::Pending, ..ServiceStatus::default() };
        assert_eq!(row("shop".parse().unwrap(), pending, None, at).hook, ReportedHook::Pending);
    }
}
