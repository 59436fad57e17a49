//! How long releases take to agents: from their publication until an agent has switched to one, and until its hook is done.
//!
//! The time of a publication is its generation; the end is when an edge says so, a second or two later. Only for what came
//! about while an edge or the agent was away is it the agent's own time, within bounds. Of several origins the owner counts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use prometheus::HistogramVec;
use weir_observed::{Delivered, Stage};
use weir_protocol::name::ServiceName;

use crate::catalog::Snapshot;

/// The most services whose deliveries are counted by name.
const MAX_NAMED: usize = 200;

/// What took longer counts as this long: edges may say anything, and generations may be those of a wrong clock.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

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
    pub(crate) fn count(&self, delivered: &[Delivered], snapshot: &Snapshot) {
        if delivered.is_empty() {
            return;
        }
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        self.forget(&mut named, snapshot);
        for Delivered { service, generation, stage, at } in delivered {
            let published = UNIX_EPOCH.checked_add(Duration::from_millis(*generation));
            // After a clock that was ahead, generations are no times until it is reached.
            let Some(took) = published.and_then(|published| at.duration_since(published).ok()) else { continue };
            let known = snapshot.services.get(service).filter(|it| snapshot.owns(&it.repository));
            // An edge may say anything; but no agent has what is not published.
            let is_published = known.and_then(|it| it.generation()).is_some_and(|(_, current)| *generation <= current);
            if is_published {
                let is_named = named.contains(service) || named.len() < MAX_NAMED && named.insert(service.clone());
                let name = if is_named { service.as_str() } else { "" };
                self.seconds.with_label_values(&[name, label(*stage)]).observe(took.min(LONGEST).as_secs_f64());
            }
        }
    }

    /// Ends the series of services that are deleted, or that another origin owns now, when others need the room.
    fn forget(&self, named: &mut BTreeSet<ServiceName>, snapshot: &Snapshot) {
        let is_owned = |name: &ServiceName| snapshot.services.get(name).is_some_and(|it| snapshot.owns(&it.repository));
        if named.len() >= MAX_NAMED {
            named.retain(|name| {
                let stays = is_owned(name);
                for stage in [Stage::Current, Stage::Hook].into_iter().filter(|_| !stays) {
                    // A missing series is no error.
                    let _ = self.seconds.remove_label_values(&[name.as_str(), label(stage)]);
                }
                stays
            });
        }
    }
}
