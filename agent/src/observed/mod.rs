//! Sends the edge in use what this agent runs of each service, and what stops it: changes at most once a second, all rows
//! where the edge lacks them. Nothing depends on it.

mod outbox;
mod row;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use weir_protocol::labels::Labels;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::{AGENT_INTERVAL_SECONDS, AgentObserved, Instance, Row};
use weir_protocol::route::Route;
use weir_runtime::shutdown::Drain;

use self::outbox::{Outbox, Outcome};
use crate::config::Config;
use crate::edge_client::{Edge, EdgeClient};
use crate::fetch::retry_after;
use crate::metrics::Metrics;
use crate::services::Services;
use crate::status::ServiceStatus;
use crate::supervise::Task;

/// The most rows of services that are assigned and not allowed.
const MAX_NOT_ALLOWED: usize = 100;

/// The time between two messages at least, except for the parts of one. Changes in between are one message.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The longest time between two messages of an agent whose other requests do not show the edge that it is alive.
const RARE_POLLS_INTERVAL: Duration = Duration::from_secs(60);

/// How long a message is not repeated that an edge deferred without saying for how long.
const DEFERRED: Duration = Duration::from_secs(60);

/// The task that sends the rows.
pub(crate) struct Observer {
    services: Arc<Services>,
    edges: Arc<EdgeClient>,
    timeout: Duration,
    poll_interval: Duration,
    labels: Labels,
    instance: Instance,
    outbox: Outbox,
    metrics: Metrics,
    drain: Drain,
}

/// The longest time between two messages. Batch polls show the edge that the agent is alive, as far as there are any, with
/// room for jitter and for edges that do not answer.
fn interval(has_batch_polls: bool, poll_interval: Duration) -> Duration {
    let shows_life = has_batch_polls && poll_interval <= RARE_POLLS_INTERVAL / 2;
    if shows_life { Duration::from_secs(AGENT_INTERVAL_SECONDS) } else { RARE_POLLS_INTERVAL }
}

/// When a release was switched to: `current` was made then.
fn switched_at(status: &ServiceStatus) -> Option<SystemTime> {
    let service = status.release.as_ref()?.directory.parent()?.parent()?;
    std::fs::symlink_metadata(service.join("current")).ok()?.modified().ok()
}

impl Observer {
    pub(crate) fn new(
        config: &Config,
        services: Arc<Services>,
        edges: Arc<EdgeClient>,
        metrics: Metrics,
        drain: Drain,
    ) -> Self {
        Self {
            services,
            edges,
            timeout: config.request_timeout,
            poll_interval: config.poll_interval,
            labels: config.labels.clone(),
            instance: format!("{:016x}", fastrand::u64(..)).parse().expect("hex digits"),
            outbox: Outbox::new(Instant::now()),
            metrics,
            drain,
        }
    }

    /// Takes in the rows that may have changed.
    fn collect(&mut self) {
        for service in self.services.take_changed() {
            let row = self.row(&service);
            self.outbox.set(service, row);
        }
    }

    fn row(&self, service: &ServiceName) -> Option<Row> {
        if let Some(status) = self.services.present(service) {
            let since = switched_at(&status);
            return Some(row::row(service, status, self.outbox.row(service), since, SystemTime::now()));
        }
        let not_allowed = self.services.not_allowed();
        let mut first = not_allowed.iter().take(MAX_NOT_ALLOWED);
        first.find(|(name, _)| *name == service).map(|(_, since)| row::not_allowed(service, *since))
    }

    /// Sends the next message.
    async fn send(&mut self, edge: &Edge) {
        let (seq, part) = self.outbox.next();
        let message = AgentObserved {
            instance: self.instance.clone(),
            seq,
            full: part.full,
            more: part.more,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            labels: self.labels.clone(),
            rows: part.rows.clone(),
            removed: part.removed.clone(),
        };
        let json = serde_json::to_vec(&message).expect("plain data");
        let outcome = self.post(edge, json).await;
        self.metrics.observed(outcome.into_str());
        self.outbox.ended(part, outcome, Instant::now(), fastrand::f64());
    }

    async fn post(&self, edge: &Edge, json: Vec<u8>) -> Outcome {
        let response = match edge.document(&Route::AgentObserved, Some(json), self.timeout, None).await {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(edge = %edge.url(), %error, "the edge was not told what runs here");
                return Outcome::Failed;
            }
        };
        tracing::debug!(edge = %edge.url(), status = response.status.as_u16(), "the edge was told what runs here");
        match response.status {
            status if status.is_success() => Outcome::Accepted(response.headers.get("weir-edge-instance").cloned()),
            StatusCode::CONFLICT => Outcome::Resync,
            StatusCode::NOT_FOUND => Outcome::Unavailable,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Outcome::Deferred(retry_after(&response.headers).unwrap_or(DEFERRED))
            }
            _ => Outcome::Failed,
        }
    }
}

impl Task for Observer {
    async fn run(&mut self) {
        loop {
            tokio::select! {
                () = self.drain.begun() => return,
                () = tokio::time::sleep(MIN_INTERVAL) => {}
            }
            self.collect();
            let edges = self.edges.current();
            let edge = edges.preferred();
            self.outbox.meet(edge.url(), edge.instance(), Instant::now(), fastrand::f64());
            let interval = interval(self.edges.selection().is_some(), self.poll_interval);
            let mut is_part = true;
            while is_part && self.outbox.is_due(interval, Instant::now()) {
                let drain = self.drain.clone();
                tokio::select! {
                    () = drain.begun() => return,
                    () = self.send(edge) => {}
                }
                is_part = self.outbox.is_within_full();
            }
            self.metrics.observed_unsent.set(i64::try_from(self.outbox.unsent()).unwrap_or(i64::MAX));
        }
    }

    fn panicked(&mut self, message: &str) {
        tracing::error!(error = message, "the task that tells edges what runs here panicked, which is a bug");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_polls_rarely_sends_more_often() {
        let (often, rarely) = (Duration::from_secs(30), Duration::from_secs(300));
        assert_eq!(interval(true, often), Duration::from_secs(AGENT_INTERVAL_SECONDS));
        assert_eq!([interval(true, rarely), interval(false, often)], [RARE_POLLS_INTERVAL; 2]);
        assert_eq!(interval(true, RARE_POLLS_INTERVAL), RARE_POLLS_INTERVAL, "with its jitter it is too late");
    }
}
