//! The table of what agents run, as the parts of an origin share it: edges write it, operators read it, and
//! [`last_seen`](crate::last_seen) stores the names in it. Nothing of it is on disk but these names.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use weir_observed::{Bounds, MAX_EDGES, Names, Now, Rejected, Table, Taken};
use weir_protocol::name::NodeName;
use weir_protocol::observed::EdgeObserved;

/// The most deletions of operators that wait for a write of the record.
const MAX_DELETIONS: usize = 16;

/// Questions that are answered at a time; each reads the whole table.
const CONCURRENT_QUERIES: usize = 2;

/// A name that an operator deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Forgotten {
    Agent(NodeName),
    Edge(NodeName),
}

/// Why a name was not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotForgotten {
    /// No origin knows it.
    Unknown,
    /// The record of names could not be written.
    Unwritten(String),
}

/// A deletion that waits for a write of the record.
pub(crate) type Deletion = (Forgotten, oneshot::Sender<Result<(), NotForgotten>>);

/// The table. Clones share it.
#[derive(Clone)]
pub(crate) struct Observed {
    table: Arc<RwLock<Table>>,
    /// Whether the names from before the start were read.
    has_names: watch::Sender<bool>,
    deletions: mpsc::Sender<Deletion>,
    queries: Arc<Semaphore>,
}

impl Observed {
    /// An empty table, and the deletions of operators.
    pub(crate) fn new(limits: Bounds, bounds: &weir_model::Bounds) -> (Self, mpsc::Receiver<Deletion>) {
        let table = Arc::new(RwLock::new(Table::new(limits)));
        let in_use = |of: fn(Bounds) -> usize| {
            let table = table.clone();
            move || of(table.read().unwrap_or_else(PoisonError::into_inner).in_use())
        };
        bounds.show("observed_agents", limits.agents, in_use(|used| used.agents));
        bounds.show("observed_rows", limits.rows, in_use(|used| used.rows));
        bounds.show("observed_bytes", limits.bytes, in_use(|used| used.bytes));
        let edges = table.clone();
        let edges = move || edges.read().unwrap_or_else(PoisonError::into_inner).edges();
        bounds.show("observed_edges", MAX_EDGES, edges);
        let (deletions, deleted) = mpsc::channel(MAX_DELETIONS);
        let queries = bounds.semaphore("fleet_queries", CONCURRENT_QUERIES);
        (Self { table, has_names: watch::Sender::new(false), deletions, queries }, deleted)
    }

    /// Takes in a message of an edge.
    pub(crate) fn apply(&self, message: EdgeObserved) -> Result<Taken, Rejected> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).apply(message, Now::of_clocks())
    }

    /// The table as it is.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was not heard for long.
    pub(crate) fn expire(&self) {
        self.table.write().unwrap_or_else(PoisonError::into_inner).expire(Now::of_clocks());
    }

    /// Adds the names of the record. From now on answers are complete, or say of which edge they are not.
    pub(crate) fn learn(&self, names: &Names) {
        self.table.write().unwrap_or_else(PoisonError::into_inner).learn(names, Now::of_clocks());
        self.has_names.send_replace(true);
    }

    /// Answers a question. `None`: the names from before the start could not be read yet, so that an answer could be short
    /// without saying so; or the origin is stopping.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Table, Now) -> T + Send + 'static,
    ) -> Option<T> {
        if !*self.has_names.borrow() {
            return None;
        }
        let permit = self.queries.clone().acquire_owned().await.ok()?;
        let observed = self.clone();
        let answer = move || {
            let _permit = permit;
            question(&observed.read(), Now::of_clocks())
        };
        tokio::task::spawn_blocking(answer).await.ok()
    }

    /// Deletes a name here and in the record.
    pub(crate) async fn forget(&self, name: Forgotten) -> Result<(), NotForgotten> {
        let stopping = || NotForgotten::Unwritten("the origin is stopping".to_owned());
        let (done, outcome) = oneshot::channel();
        self.deletions.send((name, done)).await.map_err(|_| stopping())?;
        outcome.await.unwrap_or_else(|_| Err(stopping()))
    }
}
