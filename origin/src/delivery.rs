//! How long releases take to agents: from their publication until an agent has switched to one, and until its hook is done.
//!
//! By the clocks of origins alone. The time of a publication is its generation; the end is when an edge says so, a second or
//! two later. Of several origins the owner counts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::HistogramVec;
use weir_observed::{Delivered, Stage};
use weir_protocol::name::ServiceName;

use crate::catalog::Snapshot;

/// The most services whose deliveries are counted by name.
const MAX_NAMED: usize = 200;

/// Counts deliveries. Clones count together.
#[derive(Clone)]
pub(crate) struct Deliveries {
    seconds: HistogramVec,
    /// The services that have series.
    named: Arc<Mutex<BTreeSet<ServiceName>>>,
}

const fn label(stage: Stage) -> &'static str {
    match stage {
        Stage::Current => "current",
        Stage::Hook => "hook",
    }
}

impl Deliveries {
    pub(crate) fn new(seconds: HistogramVec) -> Self {
        Self { seconds, named: Arc::default() }
    }

    /// Counts what has arrived now.
    pub(crate) fn count(&self, delivered: &[Delivered], snapshot: &Snapshot, now: SystemTime) {
        for Delivered { service, generation, stage } in delivered {
            let published = UNIX_EPOCH.checked_add(Duration::from_millis(*generation));
            // After a clock that was ahead, generations are no times until it is reached.
            let Some(took) = published.and_then(|published| now.duration_since(published).ok()) else { continue };
            let known = snapshot.services.get(service).filter(|it| snapshot.owns(&it.repository));
            // An edge may say anything; but no agent has what is not published.
            let is_published = known.and_then(|it| it.generation()).is_some_and(|(_, current)| *generation <= current);
            if is_published {
                let name = if self.is_named(service, snapshot) { service.as_str() } else { "" };
                self.seconds.with_label_values(&[name, label(*stage)]).observe(took.as_secs_f64());
            }
        }
    }

    /// Whether the service has series of its own. Those of deleted services go when others need the room.
    fn is_named(&self, service: &ServiceName, snapshot: &Snapshot) -> bool {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.contains(service) {
            return true;
        }
        if named.len() >= MAX_NAMED {
            named.retain(|name| {
                let stays = snapshot.services.contains_key(name);
                if !stays {
                    for stage in [Stage::Current, Stage::Hook] {
                        // A missing series is no error.
                        let _ = self.seconds.remove_label_values(&[name.as_str(), label(stage)]);
                    }
                }
                stays
            });
        }
        named.len() < MAX_NAMED && named.insert(service.clone())
    }
}
