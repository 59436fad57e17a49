//! Sends every origin what the agents of this edge run: one task each.

use std::sync::Arc;
use std::time::Duration;

use weir_cache::{OriginError, OriginId};
use weir_protocol::observed::{EdgeObserved, Instance};
use weir_runtime::shutdown::Drain;

use super::Observed;
use super::delivery::{Delivery, Outcome};
use crate::access::RefusedNames;
use crate::origin_client::{Origin, Origins};

/// The time between two looks for something to send, and for origins that have come.
const TICK: Duration = Duration::from_secs(1);

/// The dependencies of a sender. Cheap to clone.
#[derive(Clone)]
struct Context {
    observed: Observed,
    refused: RefusedNames,
    origins: Arc<Origins>,
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
}

/// Starts a sender for each origin, also for those that come later.
pub(crate) fn start(observed: &Observed, refused: RefusedNames, origins: &Arc<Origins>, drain: &Drain) {
    let instance = format!("{:016x}", fastrand::u64(..)).parse().expect("hex digits");
    let (observed, origins, drain) = (observed.clone(), origins.clone(), drain.clone());
    drain.clone().spawn(follow(Context { observed, refused, origins, instance, drain }));
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
        Self { context, id, origin, delivery, refused: 0, behind: 0 }
    }

    /// Runs until another origin has its place.
    async fn run(mut self) {
        let drain = self.context.drain.clone();
        while Arc::ptr_eq(&self.context.origins.get(self.id), &self.origin) {
            if self.context.origins.is_in_use(self.id) {
                tokio::select! {
                    () = drain.begun() => return,
                    () = self.send_all() => {}
                }
            }
            tokio::select! {
                () = drain.begun() => return,
                () = tokio::time::sleep(TICK) => {}
            }
        }
        self.show_behind(0);
    }

    /// Sends what is due, with the parts that follow at once.
    async fn send_all(&mut self) {
        // Without a certificate of an edge no origin listens.
        let Some(edge) = self.origin.edge_name() else { return };
        loop {
            let (refused, refused_up_to) = self.context.refused.above(self.refused);
            let now = self.context.observed.inner.clock.now();
            let (next, connected, behind) = {
                let table = self.context.observed.table();
                let next = self.delivery.next(&table, !refused.is_empty(), now);
                (next, table.connected() as u64, self.delivery.sweep.behind(&table))
            };
            self.show_behind(behind);
            let Some(mut part) = next else { return };
            let message = EdgeObserved {
                edge: edge.clone(),
                instance: self.context.instance.clone(),
                seq: self.delivery.seq,
                full: part.full,
                more: part.more,
                connected,
                agents: std::mem::take(&mut part.agents),
                unheard: std::mem::take(&mut part.unheard),
                refused,
            };
            let outcome = self.post(&message).await;
            if outcome == Outcome::Accepted {
                self.refused = refused_up_to;
            } else if outcome == Outcome::Resync {
                self.refused = 0;
            }
            let now = self.context.observed.inner.clock.now();
            self.delivery.ended(part, outcome, now, fastrand::f64());
        }
    }

    async fn post(&self, message: &EdgeObserved) -> Outcome {
        let metrics = self.context.observed.metrics();
        let json = serde_json::to_vec(message).expect("plain data");
        metrics.sent_bytes.inc_by(json.len() as u64);
        let outcome = match self.origin.observed(json).await {
            Ok(true) => Outcome::Accepted,
            Ok(false) => Outcome::Resync,
            Err(OriginError::NotFound) => Outcome::Unavailable,
            Err(OriginError::Refused { retry_after, .. }) => Outcome::Deferred(retry_after),
            Err(error) => {
                tracing::debug!(origin = self.origin.name(), %error, "an origin was not told what agents run");
                Outcome::Failed
            }
        };
        metrics.sent.with_label_values(&[outcome.into_str()]).inc();
        outcome
    }

    fn show_behind(&mut self, behind: usize) {
        let behind = i64::try_from(behind).unwrap_or(i64::MAX);
        self.context.observed.metrics().behind.add(behind - self.behind);
        self.behind = behind;
    }
}
