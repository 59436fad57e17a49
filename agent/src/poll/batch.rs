//! The batch poll: one request for all services, whose rows go to the tasks that follow them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::{HeaderValue, StatusCode, header};
use tokio::sync::{mpsc, watch};
use weir_protocol::batch_poll::{BatchPoll, BatchPollError, MAX_BATCH_BYTES};
use weir_protocol::event::Cursor;
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;
use weir_protocol::route::Route;
use weir_runtime::shutdown::Drain;

use super::batch_schedule::BatchSchedule;
use super::error::PollError;
use super::response_status::succeeded;
use crate::edge_client::{Asked, Edge, Edges, Protocol};
use crate::hook_labels::HookLabels;
use crate::metrics::Metrics;
use crate::roster_messages::{List, RosterHandle};
use crate::selection::Selection;
use crate::services::{ListError, OLD, ReceivedRow, Services};
use crate::supervise::Task;

/// The task that polls for all services.
pub(crate) struct Batch {
    pub(crate) roster: RosterHandle,
    pub(crate) services: Arc<Services>,
    pub(crate) labels: Arc<HookLabels>,
    pub(crate) asked: watch::Receiver<Asked>,
    pub(crate) timeout: Duration,
    /// With `trust` an edge that does not answer may list what others do not.
    pub(crate) has_trust: bool,
    pub(crate) schedule: BatchSchedule,
    /// A poll is due within this.
    pub(crate) wanted: mpsc::Receiver<Duration>,
    /// The same of the next poll, for what follows from it. `None`: it is due by itself.
    pub(crate) spread: Option<Duration>,
    /// Where the event stream begins; `None` while edges have no batch poll for this agent.
    pub(crate) cursor: watch::Sender<Option<Cursor>>,
    pub(crate) known: Option<LastAnswer>,
    pub(crate) metrics: Metrics,
    pub(crate) drain: Drain,
}

/// The last answer.
pub(crate) struct LastAnswer {
    tag: Option<HeaderValue>,
    rows: Arc<BatchPoll>,
}

/// What an edge answered.
struct Answer {
    /// `None`: what the last answer had.
    new: Option<LastAnswer>,
    /// How long ago an origin confirmed the oldest row, if the edge says so.
    age: Option<Duration>,
    protocol: Protocol,
}

/// How much younger the answer of another edge must be; up to twice as much, so that not all agents move at once.
const YOUNGER_BY: Duration = Duration::from_secs(15);

/// Whether an agent moves to an edge with the age `other`. `random` is from 0 to 1.
fn is_worth_moving(age: Duration, other: Duration, random: f64) -> bool {
    age > OLD && other + YOUNGER_BY.mul_f64(1.0 + random) <= age
}

/// Why an edge gave no rows.
#[derive(Debug, thiserror::Error)]
enum BatchError {
    #[error(transparent)]
    Poll(#[from] PollError),
    #[error(transparent)]
    Malformed(#[from] BatchPollError),
}

/// Why no edge gave rows.
struct Failed {
    /// The preferred edge is older, or does not know who asks.
    is_unavailable: bool,
    retry_after: Option<Duration>,
    /// Whether a retry may succeed at one of them.
    is_retryable: bool,
    errors: Vec<String>,
    request_id: RequestId,
}

impl Task for Batch {
    async fn run(&mut self) {
        loop {
            // Perhaps while a poll was on its way, whose answer is of no use then.
            if self.asked.has_changed().unwrap_or_default() {
                self.schedule.wanted(Instant::now(), Duration::ZERO);
            }
            let Asked { edges, selection } = self.asked.borrow_and_update().clone();
            if selection.is_none() {
                self.cursor.send_replace(None);
                self.services.answered(None, Instant::now());
            }
            tokio::select! {
                () = self.drain.begun() => return,
                Ok(()) = self.asked.changed() => {
                    self.asked.mark_changed();
                    continue;
                }
                Some(spread) = self.wanted.recv() => {
                    self.schedule.wanted(Instant::now(), spread);
                    self.spread = Some(self.spread.map_or(spread, |before| before.max(spread)));
                    continue;
                }
                () = tokio::time::sleep_until(self.schedule.next().into()), if selection.is_some() => {}
            }
            let Some(selection) = selection else { continue };
            let is_overdue = tokio::select! {
                () = self.drain.begun() => return,
                polled = self.poll(&edges, &selection) => self.take(polled, &selection).await,
            };
            if is_overdue {
                tokio::select! {
                    () = self.drain.begun() => return,
                    listed = self.ask_all(&edges, &selection) => self.roster.all_listed(selection, listed).await,
                }
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        self.schedule.failed(None, Instant::now(), fastrand::f64());
        tracing::error!(error = message, "the batch poll panicked, which is a bug");
    }
}

impl Batch {
    /// Tries the edges in turn until one answers.
    async fn poll(&self, edges: &Edges, selection: &Selection) -> Result<Answer, Failed> {
        let mut attempt = edges.attempt_with_age();
        let request_id = RequestId::new(fastrand::u64(..));
        let (is_unavailable, retry_after, is_retryable, errors) = (false, None, false, Vec::new());
        let mut failed = Failed { is_unavailable, retry_after, is_retryable, errors, request_id };
        let preferred = edges.preferred();
        for edge in attempt.in_order() {
            match self.ask(edge, selection, &failed.request_id).await {
                Ok(mut answer) => {
                    if let Some(age) = answer.age.filter(|age| *age > OLD)
                        && let Some((younger, other, its)) =
                            self.youngest(edges, edge, selection, &failed.request_id).await
                        && is_worth_moving(age, its, fastrand::f64())
                    {
                        attempt.prefer(younger);
                        answer = other;
                    }
                    attempt.succeeded();
                    return Ok(answer);
                }
                Err(error) => {
                    let (edge_url, request_id) = (edge.url(), &failed.request_id);
                    tracing::debug!(edge = %edge_url, %error, %request_id, "a batch poll of an edge failed");
                    // All else may be over soon, as a token that is being written.
                    let is_final =
                        matches!(&error, BatchError::Poll(of) if matches!(of.kind(), "unauthorized" | "certificate"));
                    failed.is_retryable |= !is_final;
                    if let BatchError::Poll(error) = &error {
                        let is_404 = matches!(error, PollError::Status { status: StatusCode::NOT_FOUND, .. });
                        failed.is_unavailable |= std::ptr::eq(edge, preferred) && is_404;
                        failed.retry_after = failed.retry_after.max(error.retry_after());
                        if error.is_edge_failure() {
                            attempt.failed(edge);
                        }
                    }
                    failed.errors.push(format!("{}: {error}", edge.url()));
                }
            }
        }
        Err(failed)
    }

    /// The youngest answer of the other edges, with its age.
    async fn youngest<'e>(
        &self,
        edges: &'e Edges,
        edge: &Edge,
        selection: &Selection,
        request_id: &RequestId,
    ) -> Option<(&'e Edge, Answer, Duration)> {
        let others = edges.in_order().filter(|other| !std::ptr::eq(*other, edge));
        let asked = others.map(async |other| (other, self.ask(other, selection, request_id).await));
        let answers = join_all(asked).await.into_iter().filter_map(|(edge, answer)| Some((edge, answer.ok()?)));
        let with_age = answers.filter_map(|(edge, answer)| answer.age.map(|age| (edge, answer, age)));
        with_age.min_by_key(|(_, _, age)| *age)
    }

    async fn ask(&self, edge: &Edge, selection: &Selection, request_id: &RequestId) -> Result<Answer, BatchError> {
        let target = selection.target(&Route::AgentServices, None);
        let tag = self.known.as_ref().and_then(|known| known.tag.as_ref());
        let response = edge.get(&target, tag, self.timeout, Some(request_id)).await.map_err(PollError::from)?;
        let mut response = succeeded(edge, response).await?;
        let age = response.headers.get(header::AGE).and_then(|age| age.to_str().ok()?.parse().ok());
        let (age, protocol) = (age.map(Duration::from_secs), response.protocol);
        if response.status == StatusCode::NOT_MODIFIED && tag.is_some() {
            return Ok(Answer { new: None, age, protocol });
        }
        let bytes = response.body.read(MAX_BATCH_BYTES).await.map_err(PollError::from)?;
        let rows = Arc::new(BatchPoll::parse(&bytes.ok_or(BatchPollError::TooLong)?)?);
        Ok(Answer { new: Some(LastAnswer { tag: response.headers.remove(header::ETAG), rows }), age, protocol })
    }

    /// What all edges list together. `None`: one that may list more did not answer.
    async fn ask_all(&self, edges: &Edges, selection: &Selection) -> Option<BTreeSet<ServiceName>> {
        let request_id = RequestId::new(fastrand::u64(..));
        let answers = join_all(edges.in_order().map(|edge| self.ask(edge, selection, &request_id))).await;
        let (mut services, known) = (BTreeSet::new(), self.known.as_ref());
        for answer in answers {
            match answer {
                Ok(answer) => {
                    services.extend(answer.new.as_ref().or(known).into_iter().flat_map(|known| names(&known.rows)));
                }
                Err(error) if self.has_trust => {
                    tracing::warn!(%error, %request_id, "unassigned services are kept: not every edge answered whether it lists them");
                    return None;
                }
                Err(_) => {}
            }
        }
        Some(services)
    }

    /// Passes the rows on. Returns whether all edges are to be asked: lists lack a service for long.
    async fn take(&mut self, polled: Result<Answer, Failed>, selection: &Selection) -> bool {
        let (now, random) = (Instant::now(), fastrand::f64());
        let spread = self.spread.take();
        self.services.list_error.send_replace(
            polled
                .as_ref()
                .err()
                .map(|failed| ListError { message: failed.errors.join("; "), is_retryable: failed.is_retryable }),
        );
        let protocol = match polled {
            Ok(Answer { new, age, protocol }) => {
                self.metrics.batch_polled(if new.is_some() { "changed" } else { "unchanged" });
                self.known = new.or(self.known.take());
                self.services.answered(age, now);
                protocol
            }
            Err(Failed { is_unavailable: true, .. }) => {
                self.metrics.batch_polled("unavailable");
                if self.cursor.borrow().is_some() || self.known.is_none() {
                    tracing::info!("no edge has the batch poll for this agent: services are polled one by one");
                }
                self.known = None;
                self.services.answered(None, now);
                self.cursor.send_replace(None);
                self.schedule.unavailable(now, random);
                return false;
            }
            Err(Failed { retry_after, errors, request_id, .. }) => {
                self.metrics.batch_polled("error");
                tracing::debug!(errors = errors.join("; "), %request_id, "a batch poll failed at every edge");
                self.schedule.failed(retry_after, now, random);
                return false;
            }
        };
        self.schedule.answered(now, random);
        let Some(known) = &self.known else { return false };
        let rows = known.rows.clone();
        self.labels.receive(rows.labels()).await;
        let list = List { services: names(&rows).collect(), selection: selection.clone(), spread };
        let is_overdue = self.roster.listed(list).await;
        // Events are about services that are followed. A tag of another form is none that a stream can begin at.
        let tag = known.tag.as_ref().and_then(|tag| tag.to_str().ok()).unwrap_or_default();
        self.cursor.send_replace(tag.trim_matches('"').parse().ok().or_else(|| "none".parse().ok()));
        for row in rows.services() {
            self.services.tell(ReceivedRow { row: row.clone(), protocol, spread });
        }
        is_overdue
    }
}

fn names(rows: &BatchPoll) -> impl Iterator<Item = ServiceName> {
    rows.services().iter().map(|row| row.service.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_moves_to_an_edge_that_is_clearly_younger() {
        let is_worth =
            |age, other, random| is_worth_moving(Duration::from_secs(age), Duration::from_secs(other), random);
        assert!(!is_worth(30, 0, 0.0) && is_worth(31, 0, 0.0) && is_worth(31, 0, 1.0));
        assert!(!is_worth(100, 86, 0.0) && is_worth(100, 85, 0.0) && !is_worth(100, 85, 0.5) && is_worth(100, 70, 1.0));
    }
}
