//! Requests signed statements of freshness: once a minute one request for all services of an edge.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use tokio::sync::{Notify, watch};
use weir_protocol::freshness::{Freshness, HeartbeatAnswer, HeartbeatRequest, MAX_ANSWER_BYTES, MAX_SERVICES};
use weir_protocol::name::ServiceName;
use weir_protocol::route::Route;
use weir_runtime::shutdown::Drain;

use super::Trust;
use super::proof::{Proof, StatementError};
use crate::edge_client::EdgeClient;
use crate::fetch::problem_detail;
use crate::metrics::{ProofMetrics, unix_seconds};
use crate::status::ServiceStatus;
use crate::supervise::Task;

/// The time between two requests for the same service, ±10 %.
const INTERVAL: Duration = Duration::from_secs(60);

/// The first requests of a fleet are spread over this.
const FIRST_WITHIN: Duration = Duration::from_secs(10);

/// The services whose freshness is monitored. Clones share them.
#[derive(Clone)]
pub(crate) struct Monitor {
    trust: Arc<Trust>,
    edges: Arc<EdgeClient>,
    watched: Arc<Mutex<BTreeMap<ServiceName, Watched>>>,
    request_timeout: Duration,
    max_age: Duration,
    /// Requests now.
    now: Arc<Notify>,
    is_first: bool,
    drain: Drain,
}

#[derive(Clone)]
struct Watched {
    status: watch::Sender<ServiceStatus>,
    metrics: ProofMetrics,
}

impl Monitor {
    /// `max_age`: `max_proof_age`.
    pub(crate) fn new(
        trust: Arc<Trust>,
        edges: Arc<EdgeClient>,
        request_timeout: Duration,
        max_age: Duration,
        drain: Drain,
    ) -> Self {
        let watched = Arc::default();
        Self { trust, edges, watched, request_timeout, max_age, now: Arc::default(), is_first: true, drain }
    }

    /// Begins to monitor a service.
    pub(crate) fn watch(&self, service: ServiceName, status: watch::Sender<ServiceStatus>, metrics: ProofMetrics) {
        status.send_modify(|status| status.proof = Some((Proof::new(SystemTime::now()), self.max_age)));
        let watched = Watched { status, metrics };
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).insert(service, watched);
    }

    /// Ends the monitoring of a service.
    pub(crate) fn unwatch(&self, service: &ServiceName) {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).remove(service);
    }

    /// Requests statements as soon as the task is free.
    pub(crate) fn request_now(&self) {
        self.now.notify_one();
    }

    /// Requests statements of all services that have a verified release. Returns whether there was one.
    async fn round(&self) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
        watched.retain(|_, watched| watched.status.borrow().confirmed);
        let all: Vec<_> = watched.into_iter().collect();
        for chunk in all.chunks(MAX_SERVICES) {
            let answer = self.request(chunk.iter().map(|(service, _)| service.clone())).await;
            for (service, watched) in chunk {
                self.take(service, watched, &answer);
            }
        }
        !all.is_empty()
    }

    /// Requests statements of the edges, one after the other, until one answers.
    async fn request(&self, services: impl Iterator<Item = ServiceName>) -> Result<HeartbeatAnswer, String> {
        let request = HeartbeatRequest { services: services.collect() }.to_json();
        let mut failures = Vec::new();
        for edge in self.edges.current().in_order() {
            let sent = edge.document(&Route::AgentHeartbeats, Some(request.clone()), self.request_timeout).await;
            let why = match sent {
                Ok(mut response) if response.status == StatusCode::OK => {
                    match response.body.read(MAX_ANSWER_BYTES).await {
                        Ok(Some(bytes)) => match HeartbeatAnswer::parse(&bytes) {
                            Ok(answer) => return Ok(answer),
                            Err(error) => error.to_string(),
                        },
                        Ok(None) => "the answer with statements is too long".to_owned(),
                        Err(error) => error.to_string(),
                    }
                }
                Ok(response) => {
                    let status = response.status;
                    let detail = problem_detail(&response.headers, response.body).await;
                    refusal(status, detail.as_deref())
                }
                Err(error) => error.to_string(),
            };
            tracing::debug!(edge = %edge.url(), why, "an edge gives no statements of freshness");
            failures.push(format!("{}: {why}", edge.url()));
        }
        Err(failures.join("; "))
    }

    /// Judges what an edge answered about one service.
    fn take(&self, service: &ServiceName, watched: &Watched, answer: &Result<HeartbeatAnswer, String>) {
        let now = SystemTime::now();
        let envelope = match answer {
            Ok(answer) => answer.services.iter().find(|signed| signed.service == *service).ok_or(
                "the edge has no statement of it: its origin has no key (`[signing]`), or cannot be reached".to_owned(),
            ),
            Err(why) => Err(why.clone()),
        };
        let statement = envelope.map(|signed| {
            let pinned = self.trust.keys_of(service);
            let mut keys = pinned.iter().flat_map(|pinned| pinned.keys());
            keys.find_map(|key| Freshness::signed_by(&signed.envelope, key)).ok_or(StatementError::NotTrusted)
        });
        watched.status.send_modify(|status| {
            let (held, pinned) = (status.held(), status.pinned.is_some());
            let Some((proof, max_age)) = &mut status.proof else { return };
            let accepted = match statement {
                Ok(statement) => statement.and_then(|statement| proof.accept(statement, service, held, now)),
                Err(why) => {
                    proof.miss(why);
                    Ok(())
                }
            };
            if let Err(error) = accepted {
                tracing::warn!(%service, %error, "a statement of freshness is refused");
                watched.metrics.refused(error.reason());
                proof.refuse(&error);
            }
            let assessed = proof.assess(held, pinned, *max_age, now);
            watched.metrics.current_at.set(assessed.current_at.map_or(0.0, unix_seconds));
            watched.metrics.degraded.set(f64::from(u8::from(assessed.problem.is_some())));
            let unreachable = assessed.upstream_unreachable_since.is_some();
            watched.metrics.upstream_unreachable.set(f64::from(u8::from(unreachable)));
        });
    }
}

/// What an operator can do about a status.
fn refusal(status: StatusCode, detail: Option<&str>) -> String {
    let hint = match status {
        StatusCode::NOT_FOUND => {
            "it does not know who asks (give this agent a token or a client certificate), or is older"
        }
        _ => detail.unwrap_or("it gives no reason"),
    };
    format!("the edge answers {status}: {hint}")
}

impl Task for Monitor {
    async fn run(&mut self) {
        loop {
            let wait = match self.is_first {
                true => FIRST_WITHIN.mul_f64(fastrand::f64()),
                false => INTERVAL.mul_f64(0.9 + 0.2 * fastrand::f64()),
            };
            tokio::select! {
                () = self.drain.begun() => return,
                () = self.now.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            tokio::select! {
                () = self.drain.begun() => return,
                any = self.round() => self.is_first &= !any,
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        tracing::error!(message, "the monitor of freshness panicked, which is a bug");
    }
}
