//! The table of what agents run, as the parts of an origin share it: edges write it, operators read it, and
//! [`last_seen`](crate::last_seen) stores the names in it. Nothing of it is on disk but these names.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use weir_observed::{Bounds, Delivered, MAX_EDGES, Names, Now, Rejected, Table, Taken};
use weir_protocol::name::{EdgeName, NodeName};
use weir_protocol::observed::EdgeObserved;

/// The most deletions of operators that wait for a write of the record.
const MAX_DELETIONS: usize = 16;

/// Questions that are answered at a time; each reads the whole table.
const CONCURRENT_QUERIES: usize = 2;

/// Messages of edges that are read and taken in at a time.
const CONCURRENT_MESSAGES: usize = 4;

/// The messages of edges with one identity that wait until the one before is processed.
const WAITING_MESSAGES: usize = 32;

/// A name that an operator deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Forgotten {
    Agent(NodeName),
    Edge(EdgeName),
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

/// What is in use of the bounds, after the last change: metrics read it without the lock of the table.
#[derive(Default)]
struct InUse {
    agents: AtomicUsize,
    rows: AtomicUsize,
    bytes: AtomicUsize,
    edges: AtomicUsize,
}

impl InUse {
    fn show(&self, table: &Table) {
        let Bounds { agents, rows, bytes, .. } = table.in_use();
        self.agents.store(agents, Relaxed);
        self.rows.store(rows, Relaxed);
        self.bytes.store(bytes, Relaxed);
        self.edges.store(table.edges(), Relaxed);
    }
}

/// The table. Clones share it. No task of the runtime waits for its lock: what needs it runs where it may block.
#[derive(Clone)]
pub(crate) struct Observed {
    table: Arc<RwLock<Table>>,
    in_use: Arc<InUse>,
    /// Whether the names from before the start were read.
    has_names: watch::Sender<bool>,
    deletions: mpsc::Sender<Deletion>,
    queries: Arc<Semaphore>,
    messages: Arc<Semaphore>,
    /// The identities of edges of which messages are being processed, each with its one permit.
    senders: Arc<Mutex<BTreeMap<NodeName, Arc<Semaphore>>>>,
}

impl Observed {
    /// An empty table, and the deletions of operators.
    pub(crate) fn new(limits: Bounds, bounds: &weir_runtime::bounds::Bounds) -> (Self, mpsc::Receiver<Deletion>) {
        let in_use = Arc::new(InUse::default());
        let show = |name, limit, of: fn(&InUse) -> &AtomicUsize| {
            let in_use = in_use.clone();
            bounds.show(name, limit, move || of(&in_use).load(Relaxed));
        };
        show("observed_agents", limits.agents, |it| &it.agents);
        show("observed_rows", limits.rows, |it| &it.rows);
        show("observed_bytes", limits.bytes, |it| &it.bytes);
        show("observed_edges", MAX_EDGES, |it| &it.edges);
        let (deletions, deleted) = mpsc::channel(MAX_DELETIONS);
        let (table, has_names) = (Arc::new(RwLock::new(Table::new(limits))), watch::Sender::new(false));
        let queries = bounds.semaphore("fleet_queries", CONCURRENT_QUERIES);
        let messages = bounds.semaphore("observed_messages", CONCURRENT_MESSAGES);
        let senders = Arc::default();
        (Self { table, in_use, has_names, deletions, queries, messages, senders }, deleted)
    }

    /// Waits until a message of an edge may be processed. `None`: too many with its identity wait. Those of one identity are
    /// processed one after another, so that none holds the permits that others wait for.
    pub(crate) async fn begin(&self, identity: &NodeName) -> Option<OwnedSemaphorePermit> {
        let turn = {
            let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
            senders.retain(|_, turn| Arc::strong_count(turn) > 1);
            senders.entry(identity.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
        };
        // The table has one, and each message.
        if Arc::strong_count(&turn) > WAITING_MESSAGES + 2 { None } else { turn.acquire_owned().await.ok() }
    }

    /// Takes in a message of an edge: `read` reads it, with the shield through which it came, where it may block, and `count` gets what has arrived at agents.
    /// `None`: the origin is stopping.
    pub(crate) async fn apply<E: From<Rejected> + Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<(EdgeObserved, Option<EdgeName>), E> + Send + 'static,
        count: impl FnOnce(&[Delivered]) + Send + 'static,
    ) -> Option<Result<Taken, E>> {
        let permit = self.messages.clone().acquire_owned().await.ok()?;
        let observed = self.clone();
        let apply = move || {
            let _permit = permit;
            let (message, via) = read()?;
            let (taken, delivered) =
                observed.write(|table| (table.apply(message, via, Now::of_clocks()), table.take_delivered()));
            count(&delivered);
            Ok(taken?)
        };
        spawn_blocking(apply).await.ok()
    }

    /// Changes the table. Blocks.
    fn write<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut table);
        self.in_use.show(&table);
        changed
    }

    /// Reads the table, whatever is in it. `None`: the origin is stopping.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Table, Now) -> T + Send + 'static,
    ) -> Option<T> {
        let table = self.table.clone();
        let look = move || look(&table.read().unwrap_or_else(PoisonError::into_inner), Now::of_clocks());
        spawn_blocking(look).await.ok()
    }

    /// Forgets what was not heard for long.
    pub(crate) async fn expire(&self) {
        let observed = self.clone();
        // Without it the origin is stopping.
        let _ = spawn_blocking(move || observed.write(|table| table.expire(Now::of_clocks()))).await;
    }

    /// Adds the names of the record. From now on answers are complete, or say of which edge they are not.
    pub(crate) async fn learn(&self, names: Arc<Names>) {
        let observed = self.clone();
        if spawn_blocking(move || observed.write(|table| table.learn(&names, Now::of_clocks()))).await.is_ok() {
            self.has_names.send_replace(true);
        }
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
        let table = self.table.clone();
        let answer = move || {
            let _permit = permit;
            // Messages of edges wait for the copy alone.
            let table = table.read().unwrap_or_else(PoisonError::into_inner).clone();
            question(&table, Now::of_clocks())
        };
        spawn_blocking(answer).await.ok()
    }

    /// Deletes a name here and in the record.
    pub(crate) async fn forget(&self, name: Forgotten) -> Result<(), NotForgotten> {
        let stopping = || NotForgotten::Unwritten("the origin is stopping".to_owned());
        let (done, outcome) = oneshot::channel();
        self.deletions.send((name, done)).await.map_err(|_| stopping())?;
        outcome.await.unwrap_or_else(|_| Err(stopping()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::{Registry, TextEncoder};

    use super::*;

    #[tokio::test]
    async fn one_message_of_an_identity_is_taken_in_at_a_time() {
        let bounds = weir_runtime::bounds::Bounds::register(&Registry::new()).unwrap();
        let (observed, _deletions) = Observed::new(Bounds::default(), &bounds);
        let [one, two]: [NodeName; 2] = ["edge-1", "edge-2"].map(|name| name.parse().unwrap());
        let first = observed.begin(&one).await.unwrap();
        assert!(observed.begin(&two).await.is_some());
        let mut waiting: Vec<_> = (0..WAITING_MESSAGES).map(|_| Box::pin(observed.begin(&one))).collect();
        for message in &mut waiting {
            tokio::select! {
                biased;
                _ = message => panic!("one is processed"),
                () = std::future::ready(()) => {}
            }
        }
        assert!(observed.begin(&one).await.is_none(), "no more of them wait");
        drop(first);
        assert!(waiting.remove(0).await.is_some());
        drop(waiting);
        assert_eq!(observed.begin(&two).await.is_some().then(|| observed.senders.lock().unwrap().len()), Some(1));
    }

    /// On one thread, as any task that blocks would stop all of them.
    #[tokio::test(flavor = "current_thread")]
    async fn while_a_message_has_the_table_metrics_and_other_tasks_go_on() {
        let registry = Registry::new();
        let bounds = weir_runtime::bounds::Bounds::register(&registry).unwrap();
        let (observed, _deletions) = Observed::new(Bounds::default(), &bounds);
        let read = || {
            let golden = include_str!("../../shared/protocol/golden/edge/observed.json");
            let mut message = EdgeObserved::parse(golden.as_bytes()).unwrap();
            message.full = true;
            Ok::<_, Refused>((message, None))
        };
        assert!(matches!(observed.apply(read, |_| {}).await, Some(Ok(Taken::Whole))));
        let (held, release) = (Arc::new(tokio::sync::Notify::new()), std::sync::mpsc::channel::<()>());
        let (writer, has_it) = (observed.clone(), held.clone());
        let holder = spawn_blocking(move || {
            writer.write(|_| {
                has_it.notify_one();
                release.1.recv().unwrap();
            });
        });
        held.notified().await;
        let (second, look) = (observed.apply(read, |_| {}), observed.look(|table, _| table.edges()));
        tokio::pin!(second, look);
        tokio::select! {
            biased;
            _ = &mut second => panic!("the table is in use"),
            _ = &mut look => panic!("the table is in use"),
            () = tokio::task::yield_now() => {}
        }
        let (sender, shown) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(TextEncoder::new().encode_to_string(&registry.gather())));
        let shown = shown.recv_timeout(Duration::from_secs(30));
        release.0.send(()).unwrap();
        let shown = shown.expect("metrics wait for no message").unwrap();
        for (bound, in_use) in [("observed_agents", 1), ("observed_edges", 1), ("observed_messages", 1)] {
            let line = format!("weir_bound_in_use{{bound=\"{bound}\"}} {in_use}");
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
        holder.await.unwrap();
        assert_eq!((second.await.map(|taken| taken.is_ok()), look.await), (Some(true), Some(1)));
    }

    struct Refused;

    impl From<Rejected> for Refused {
        fn from(_: Rejected) -> Self {
            Self
        }
    }
}
