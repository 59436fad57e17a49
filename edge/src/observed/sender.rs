//! Sends every origin what the agents of this edge run: one task each.

use std::sync::Arc;
use std::time::Duration;

use weir_cache::{OriginError, OriginId};
use weir_protocol::name::NodeName;
use weir_protocol::observed::{Capability, EDGE_PATH, EdgeObserved, Instance, NAME_TWICE};
use weir_runtime::shutdown::Drain;

use super::Observed;
use super::delivery::{Delivery, Outcome};
use crate::access::RefusedNames;
use crate::origin_client::{Origin, Origins};

/// The time between two looks for something to send, and for origins that have come.
const TICK: Duration = Duration::from_secs(1);

/// How long a draining edge waits until an origin has its last message.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(3);

/// The dependencies of a sender. Cheap to clone.
#[derive(Clone)]
struct Context {
    observed: Observed,
    refused: RefusedNames,
    origins: Arc<Origins>,
    /// The name of this edge among those with its identity.
    name: Option<NodeName>,
    /// This run of the edge.
    instance: Instance,
    drain: Drain,
}

/// Sends one origin what it lacks.
struct Sender {
    context: Context,
    id: OriginId,
    origin: Arc<Origin>,
    delivery: Delivery,
    /// The refused names that it has, up to this number.
    refused: u64,
    /// The rows that it lacks, as the metric has them.
    behind: i64,
    /// It says that another edge has the same name.
    is_named_twice: bool,
}

/// Starts a sender for each origin, also for those that come later.
pub(crate) fn start(
    observed: &Observed,
    refused: RefusedNames,
    origins: &Arc<Origins>,
    name: Option<NodeName>,
    drain: &Drain,
) {
    let instance = format!("{:016x}", fastrand::u64(..)).parse().expect("hex digits");
    let (observed, origins, drain) = (observed.clone(), origins.clone(), drain.clone());
    drain.clone().spawn(follow(Context { observed, refused, origins, name, instance, drain }));
}

async fn follow(context: Context) {
    let mut known = Vec::<Arc<Origin>>::new();
    loop {
        let all: Vec<_> = context.origins.all().collect();
        for (id, origin) in &all {
            if !known.get(*id).is_some_and(|known| Arc::ptr_eq(known, origin)) {
                context.drain.spawn(Sender::new(context.clone(), *id, origin.clone()).run());
            }
        }
        known = all.into_iter().map(|(_, origin)| origin).collect();
        tokio::select! {
            () = context.drain.begun() => return,
            () = tokio::time::sleep(TICK) => {}
        }
    }
}

impl Sender {
    fn new(context: Context, id: OriginId, origin: Arc<Origin>) -> Self {
        let delivery = Delivery::new(context.observed.inner.clock.now());
        Self { context, id, origin, delivery, refused: 0, behind: 0, is_named_twice: false }
    }

    /// Runs until another origin has its place, or the edge drains: then it says so.
    async fn run(mut self) {
        let drain = self.context.drain.clone();
        while Arc::ptr_eq(&self.context.origins.get(self.id), &self.origin) {
            let is_in_use = self.context.origins.is_in_use(self.id);
            if is_in_use {
                tokio::select! {
                    () = drain.begun() => {}
                    () = self.send_all(false) => {}
                }
            }
            tokio::select! {
                () = drain.begun() => {
                    if is_in_use && self.origin.is_up() {
                        let _ = tokio::time::timeout(LAST_MESSAGE_TIMEOUT, self.send_all(true)).await;
                    }
                    break;
                }
                () = tokio::time::sleep(TICK) => {}
            }
        }
        self.show_behind(0);
        self.show_named_twice(false);
    }

    /// Sends what is due, with the parts that follow at once. `is_last`: all that the origin lacks, and that the edge drains.
    async fn send_all(&mut self, is_last: bool) {
        // Without a certificate of an edge no origin listens.
        let Some(edge) = self.origin.edge_name() else { return };
        loop {
            let (refused, refused_up_to) = self.context.refused.above(self.refused);
            let now = self.context.observed.inner.clock.now();
            let (next, connected, behind) = {
                let table = self.context.observed.table();
                let next = match is_last {
                    true => Some(self.delivery.at_once(&table, now)),
                    false => self.delivery.next(&table, !refused.is_empty(), now),
                };
                let behind = next.as_ref().map(|_| self.delivery.sweep.behind(&table));
                (next, table.connected as u64, behind)
            };
            let (Some(mut part), Some(behind)) = (next, behind) else { return };
            self.show_behind(behind);
            let message = EdgeObserved {
                edge: edge.clone(),
                name: self.context.name.clone(),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                capabilities: [Capability::Staged].into(),
                instance: self.context.instance.clone(),
                seq: self.delivery.seq,
                full: part.full,
                more: part.more,
                draining: is_last && !part.more,
                connected,
                agents: std::mem::take(&mut part.agents),
                unheard: std::mem::take(&mut part.unheard),
                refused,
            };
            let outcome = self.post(&message).await;
            match outcome {
                Outcome::Accepted => self.refused = refused_up_to,
                Outcome::Resync => self.refused = 0,
                _ => {}
            }
            if matches!(outcome, Outcome::Accepted | Outcome::NameTwice(_)) {
                self.show_named_twice(outcome != Outcome::Accepted);
            }
            if outcome == Outcome::Accepted && !part.more {
                self.show_behind(0);
            }
            let now = self.context.observed.inner.clock.now();
            let goes_on = outcome == Outcome::Resync && !part.full || outcome == Outcome::Accepted && part.more;
            self.delivery.ended(part, outcome, now, fastrand::f64());
            if is_last && !goes_on {
                return;
            }
        }
    }

    async fn post(&self, message: &EdgeObserved) -> Outcome {
        let metrics = self.context.observed.metrics();
        let json = serde_json::to_vec(message).expect("plain data");
        metrics.sent_bytes.inc_by(json.len() as u64);
        let outcome = match self.origin.observed(EDGE_PATH, json.into()).await {
            Ok(true) => Outcome::Accepted,
            Ok(false) => Outcome::Resync,
            Err(OriginError::NotFound) => Outcome::Unavailable,
            Err(OriginError::Refused { kind, retry_after, .. }) if kind == NAME_TWICE => {
                Outcome::NameTwice(retry_after)
            }
            Err(OriginError::Refused { retry_after, .. }) => Outcome::Deferred(retry_after),
            Err(error) => {
                tracing::debug!(origin = self.origin.name(), %error, "an origin was not told what agents run");
                Outcome::Failed
            }
        };
        metrics.sent.with_label_values(&[outcome.into_str()]).inc();
        outcome
    }

    /// Says it once, and in the metric as long as it is so.
    fn show_named_twice(&mut self, is_named_twice: bool) {
        if is_named_twice && !self.is_named_twice {
            tracing::warn!(
                origin = self.origin.name(),
                "two edges use the same name: give each a `name` or a certificate of its own"
            );
        }
        let change = i64::from(is_named_twice) - i64::from(std::mem::replace(&mut self.is_named_twice, is_named_twice));
        self.context.observed.metrics().name_twice.add(change);
    }

    fn show_behind(&mut self, behind: usize) {
        let behind = i64::try_from(behind).unwrap_or(i64::MAX);
        self.context.observed.metrics().behind.add(behind - self.behind);
        self.behind = behind;
    }
}
