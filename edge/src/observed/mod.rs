//! What the agents of this edge say that they run: in memory, and on its way to every origin.

mod agent;
mod delivery;
#[cfg(test)]
mod fixture;
mod metrics;
mod runs;
mod sender;
mod sweep;
mod table;
mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus::Registry;
use serde_json::Value;
use tokio::sync::watch;
use weir_cache::clock::Clock;
use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::name_glob::NameGlob;
use weir_protocol::observed::{AgentObserved, Instance, Proved};
use weir_runtime::bounds::Bound;
use weir_runtime::shutdown::Drain;

use crate::access::KnownFleet;

pub(crate) use self::metrics::ObservedMetrics;
pub(crate) use self::sender::start as start_senders;
pub(crate) use self::table::Rejected;

use self::agent::Identity;
use self::table::Table;

/// How often the table looks for agents that are silent.
const PASS_INTERVAL: Duration = Duration::from_secs(5);

/// What the agents of this edge say that they run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Observed {
    inner: Arc<Inner>,
}

struct Inner {
    table: Mutex<Table>,
    fleet: watch::Receiver<Arc<KnownFleet>>,
    clock: Clock,
    metrics: ObservedMetrics,
}

impl Observed {
    /// Starts to follow time and the labels that operators assert. `max_bytes`: the most memory, about.
    ///
    /// # Errors
    /// A metric is registered already.
    pub(crate) fn start(
        max_bytes: u64,
        fleet: watch::Receiver<Arc<KnownFleet>>,
        clock: Clock,
        registry: &Registry,
        drain: &Drain,
    ) -> prometheus::Result<Self> {
        let metrics = ObservedMetrics::register(registry)?;
        let table = Mutex::new(Table::new(max_bytes, clock.now()));
        let observed = Self { inner: Arc::new(Inner { table, fleet, clock, metrics }) };
        drain.spawn(observed.clone().pass(drain.clone()));
        Ok(observed)
    }

    async fn pass(self, drain: Drain) {
        let mut fleet = self.inner.fleet.clone();
        loop {
            tokio::select! {
                () = drain.begun() => return,
                () = tokio::time::sleep(PASS_INTERVAL) => {}
                Ok(()) = fleet.changed() => {
                    let fleet = fleet.borrow_and_update().fleet.clone();
                    self.table().relabel(|name, identity| fleet.labels_of(name, &identity.token_labels));
                }
            }
            let mut table = self.table();
            table.pass(self.inner.clock.now());
            let (connected, duplicated) = (table.connected, table.duplicated());
            let unheard = table.agents.len() - connected;
            drop(table);
            for (state, count) in [("connected", connected), ("unheard", unheard)] {
                self.metrics().agents.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            self.metrics().duplicated.set(i64::try_from(duplicated).unwrap_or(i64::MAX));
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn metrics(&self) -> &ObservedMetrics {
        &self.inner.metrics
    }

    /// Takes in a message of an agent. `labels`: what its token asserts.
    ///
    /// # Errors
    /// Nothing of it was accepted.
    pub(crate) fn accept(
        &self,
        name: &NodeName,
        proved: Proved,
        token_labels: &Labels,
        message: AgentObserved,
    ) -> Result<(), Rejected> {
        let labels = self.inner.fleet.borrow().fleet.labels_of(name, token_labels);
        let identity = Identity { proved, token_labels: token_labels.clone(), labels };
        let accepted = self.table().accept(name, identity, message, self.inner.clock.now());
        self.metrics().received(match &accepted {
            Ok(_) => "accepted",
            Err(Rejected::Resync) => "resync",
            Err(Rejected::Full) => "no_room",
        });
        let duplicated = accepted?;
        if !duplicated.is_empty() {
            tracing::warn!(
                agent = %name,
                instances = duplicated.iter().map(Instance::as_str).collect::<Vec<_>>().join(", "),
                "two agents use the same name: give each cluster its own identity"
            );
        }
        Ok(())
    }

    /// An agent has sent an authenticated request about itself. Returns [`runs_before`](Self::runs_before), for which an idle
    /// poll needs no lock of its own.
    pub(crate) fn heard(&self, name: &NodeName) -> u64 {
        self.table().heard(name, self.inner.clock.now())
    }

    /// How often another run of an agent's name has taken the place of the one before.
    pub(crate) fn runs_before(&self, name: &NodeName) -> u64 {
        self.table().agents.get(name).map_or(0, |agent| agent.runs_before)
    }

    pub(crate) fn bound(&self) -> Bound {
        let table = self.table();
        ("agent_observed_bytes", table.bytes as u64, table.max_bytes as u64)
    }

    /// For `/status`: how many agents there are, and what is wrong with which.
    pub(crate) fn summary(&self) -> Value {
        self.table().summary()
    }

    /// For `/v1/summary`: the first `most` agents, those with problems first.
    pub(crate) fn worst(&self, most: usize) -> Vec<Value> {
        let names = self.table().worst(most);
        let (now, wall) = (self.inner.clock.now(), SystemTime::now());
        // Polls wait for the table: it is locked for one agent at a time.
        names.iter().filter_map(|name| self.table().listed(name, now, wall)).collect()
    }

    /// For `/v1/agents`: a page of agents, after one of them.
    pub(crate) fn page(&self, agent: Option<&NameGlob>, after: Option<&NodeName>, limit: usize) -> Value {
        self.table().page(agent, (after, limit), self.inner.clock.now(), SystemTime::now())
    }

    /// For `/v1/agents/{name}`: an agent with its rows.
    pub(crate) fn agent(&self, name: &NodeName) -> Option<Value> {
        self.table().agent(name, self.inner.clock.now(), SystemTime::now())
    }

    /// For `/v1/explain`: what agents say of a service, and how many do.
    pub(crate) fn of_service(&self, service: &ServiceName) -> (Vec<Value>, usize) {
        self.table().of_service(service, self.inner.clock.now(), SystemTime::now())
    }
}
