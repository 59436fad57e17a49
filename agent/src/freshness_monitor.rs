//! Requests signed freshness statements: once a minute one request for all services of an edge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use tokio::sync::{Notify, watch};
use weir_protocol::descriptor::Generation;
use weir_protocol::envelope::Envelope;
use weir_protocol::freshness::{
    Freshness, HeartbeatAnswer, HeartbeatRequest, MAX_ANSWER_BYTES, MAX_SERVICES, SignedFreshness,
};
use weir_protocol::name::ServiceName;
use weir_protocol::route::Route;
use weir_runtime::shutdown::Drain;

use crate::edge_client::{Edge, EdgeClient};
use crate::fetch::problem_detail;
use crate::metrics::{ProofMetrics, unix_seconds};
use crate::status::ServiceStatus;
use crate::supervise::Task;
use crate::verify::{Proof, StatementError, Trust};

/// The time between two requests for the same service, ±10 %.
const INTERVAL: Duration = Duration::from_secs(60);

/// A statement that is older than this is requested of the next edge as well.
const OLD: Duration = Duration::from_secs(60);

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

/// A statement that a pinned key has signed.
type Statement = Result<Freshness, StatementError>;

const NO_STATEMENT: &str =
    "the edge has no freshness statement of the service: its origin has no key (`[signing]`), or cannot be reached";

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
            let held = |watched: &Watched| watched.status.borrow().held().map(|held| held.generation);
            let held = chunk.iter().map(|(service, watched)| (service.clone(), held(watched))).collect();
            let (mut found, why) = self.request(&held).await;
            for (service, watched) in chunk {
                self.take(service, watched, found.remove(service).ok_or_else(|| why.clone()));
            }
        }
        !all.is_empty()
    }

    /// Requests statements of the edges, one after the other, until each service has a young one. Returns the newest of each,
    /// and why others have none. `held`: the generations of the releases.
    async fn request(
        &self,
        held: &BTreeMap<ServiceName, Option<Generation>>,
    ) -> (BTreeMap<ServiceName, Statement>, String) {
        let mut services: BTreeSet<ServiceName> = held.keys().cloned().collect();
        let (mut found, mut failures) = (BTreeMap::new(), Vec::new());
        for edge in self.edges.current().in_order() {
            match self.ask(edge, &services).await {
                Ok(answer) => {
                    for signed in answer.services.into_iter().filter(|signed| services.contains(&signed.service)) {
                        let statement = self.about(held.get(&signed.service).copied().flatten(), &signed);
                        let is_newer = |other: &Statement| time_of(other) < time_of(&statement);
                        if found.get(&signed.service).is_none_or(is_newer) {
                            found.insert(signed.service, statement);
                        }
                    }
                    failures.push(format!("{}: {NO_STATEMENT}", edge.url()));
                }
                Err(why) => {
                    tracing::debug!(edge = %edge.url(), why, "an edge provides no freshness statements");
                    failures.push(format!("{}: {why}", edge.url()));
                }
            }
            let young = SystemTime::now() - OLD;
            services.retain(|service| found.get(service).and_then(time_of).is_none_or(|time| time < young));
            if services.is_empty() {
                break;
            }
        }
        (found, failures.join("; "))
    }

    async fn ask(&self, edge: &Edge, services: &BTreeSet<ServiceName>) -> Result<HeartbeatAnswer, String> {
        let request = HeartbeatRequest { services: services.clone() }.to_json();
        let sent = edge.document(&Route::AgentHeartbeats, Some(request), self.request_timeout, None).await;
        let mut response = sent.map_err(|error| error.to_string())?;
        if response.status != StatusCode::OK {
            let detail = problem_detail(&response.headers, response.body).await;
            return Err(refusal(response.status, detail.as_deref()));
        }
        let bytes = response.body.read(MAX_ANSWER_BYTES).await.map_err(|error| error.to_string())?;
        let bytes = bytes.ok_or("the answer with statements is too long")?;
        HeartbeatAnswer::parse(&bytes).map_err(|error| error.to_string())
    }

    /// The statement that is about a release of this generation: that of the staged version if it is this one, and nothing later
    /// is in force.
    fn about(&self, held: Option<Generation>, signed: &SignedFreshness) -> Statement {
        let in_force = self.verified(&signed.service, &signed.envelope);
        let staged = signed.staged.as_ref().and_then(|envelope| self.verified(&signed.service, envelope).ok());
        let staged = staged.filter(|staged| Some(staged.generation) == held);
        match (in_force, staged) {
            (Ok(in_force), Some(staged)) if in_force.generation < staged.generation => Ok(staged),
            (in_force, _) => in_force,
        }
    }

    fn verified(&self, service: &ServiceName, envelope: &Envelope) -> Statement {
        let pinned = self.trust.keys_of(service);
        let mut keys = pinned.iter().flat_map(|pinned| pinned.keys());
        let statement = keys.find_map(|key| Freshness::signed_by(envelope, key));
        let statement = statement.ok_or(StatementError::NotTrusted)?;
        // Only the statement's own name is signed. One of another service must not spare the next edge the question.
        if statement.service != *service {
            return Err(StatementError::OtherService(statement.service));
        }
        Ok(statement)
    }

    /// Judges what the edges answered about one service. `Err`: none has a statement.
    fn take(&self, service: &ServiceName, watched: &Watched, statement: Result<Statement, String>) {
        let now = SystemTime::now();
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
                tracing::warn!(%service, %error, "a freshness statement was rejected");
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

/// When a statement was signed, if a pinned key has.
fn time_of(statement: &Statement) -> Option<SystemTime> {
    statement.as_ref().ok().map(|statement| statement.time)
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
        tracing::error!(error = message, "the freshness monitor panicked, which is a bug");
    }
}
