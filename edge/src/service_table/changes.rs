//! Changes to the table, written many at a time.
//!
//! Each change is on disk before it is served, and each write to disk takes as long as the disk takes. What arrives
//! during one write is therefore written by the next one, all together: when a thousand services are asked for for the
//! first time, that is a handful of writes, on one thread. A disk that takes nothing keeps back what is newer than what
//! stands on it, and nothing else (see `undurable`).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::name::ServiceName;

use super::decision::Batch;
use super::entry::Entry;
use super::missed::Order;
use super::store::StoreError;
use super::table::Table;
use crate::clock::Moment;
use crate::origin_client::OriginId;

/// What an origin said of a service.
#[derive(Debug)]
pub(crate) struct Change {
    /// Whose word it is.
    pub(crate) origin: Option<OriginId>,
    /// How it came.
    pub(crate) told: Told,
    /// Up to when it is known to hold.
    pub(crate) at: Moment,
    /// What it is.
    pub(crate) word: Said,
}

/// What an origin said.
#[derive(Debug)]
pub(crate) enum Said {
    /// This is what it publishes.
    Current(Box<Descriptor>),
    /// The service is gone; with the highest generation it had, when that was said.
    Gone(ServiceName, Option<Generation>),
}

/// How an origin's word came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// In answer to a question that was put when this was the highest version known.
    Asked(Order),
    /// The same, and the question was about this one version: the answer does not say that it is current.
    AskedForForms(Order),
    /// By its event stream.
    Pushed,
}

/// What became of a change.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// This is held from now on: a generation that was not seen before.
    Taken(Arc<Entry>),
    /// This is held from now on: a generation that is known, in other forms, from another origin, gone or back again.
    Revised(Arc<Entry>),
    /// This was held already: it is the same, or the word was overtaken by a newer one.
    Held(Arc<Entry>),
    /// It was refused: a newer version was seen before.
    Regressed,
    /// It was refused: the service is another origin's.
    AnotherOrigins,
    /// It has gone from its origin, and may be at another: that has to be asked.
    GoneThere,
    /// The service was never held: there is nothing to remember.
    NeverHeld,
}

/// The changes that wait for the thread that writes.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    changes: Vec<(Change, Done)>,
    being_written: bool,
}

type Done = oneshot::Sender<Result<Outcome, Arc<StoreError>>>;

impl Table {
    /// Applies a change: on disk, then in memory. Waits until it is.
    pub(super) async fn apply(self: &Arc<Self>, change: Change) -> Result<Outcome, Arc<StoreError>> {
        let mut outcomes = self.apply_all(vec![change]).await;
        outcomes.pop().unwrap_or_else(|| Err(StoreError::interrupted().into()))
    }

    /// Applies changes in their order. Waits until all are.
    pub(crate) async fn apply_all(self: &Arc<Self>, changes: Vec<Change>) -> Vec<Result<Outcome, Arc<StoreError>>> {
        let mut outcomes = Vec::with_capacity(changes.len());
        let begin = {
            let mut waiting = self.queue().waiting();
            for change in changes {
                let (done, outcome) = oneshot::channel();
                waiting.changes.push((change, done));
                outcomes.push(outcome);
            }
            !std::mem::replace(&mut waiting.being_written, true)
        };
        if begin {
            let table = self.clone();
            tokio::task::spawn_blocking(move || table.write_all_that_waits());
        }
        let mut applied = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            applied.push(outcome.await.unwrap_or_else(|_| Err(StoreError::interrupted().into())));
        }
        applied
    }

    fn write_all_that_waits(&self) {
        // Also when this thread panics, the next change finds nobody writing and begins anew.
        let _writing = Writing(self.queue());
        loop {
            let changes = {
                let mut waiting = self.queue().waiting();
                if waiting.changes.is_empty() {
                    waiting.being_written = false;
                    return;
                }
                std::mem::take(&mut waiting.changes)
            };
            self.write(changes);
        }
    }

    fn write(&self, changes: Vec<(Change, Done)>) {
        let turn = self.turn();
        let mut batch = Batch::default();
        let decided: Vec<_> = changes
            .into_iter()
            .map(|(change, done)| (change.word.service().clone(), self.decide(change, &mut batch), done))
            .collect();
        let records = std::mem::take(&mut batch.records);
        let written = if records.is_empty() { Ok(()) } else { self.put(&turn, records).map_err(Arc::new) };
        let mut lost = HashSet::new();
        for (service, entry) in batch.entries {
            if written.is_ok() || self.can_be_undurable(&service, &entry, &batch.never_held) {
                self.show(service, entry);
            } else {
                lost.insert(service);
            }
        }
        for (service, outcome, done) in decided {
            let outcome = match &written {
                Err(error) if lost.contains(&service) => Err(error.clone()),
                _ => outcome.map_err(Arc::new),
            };
            // Whoever asked may be gone.
            let _ = done.send(outcome);
        }
    }

    /// Whether what could not be written is served all the same: nothing older of it stands on disk.
    fn can_be_undurable(&self, service: &ServiceName, entry: &Arc<Entry>, never_held: &HashSet<ServiceName>) -> bool {
        let undurable = self.undurable();
        (never_held.contains(service) || undurable.get(service).is_some()) && undurable.keep(service, entry)
    }
}

impl Said {
    fn service(&self) -> &ServiceName {
        match self {
            Said::Current(descriptor) => &descriptor.publication().service,
            Said::Gone(service, _) => service,
        }
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that can panic runs while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that writes; while it unwinds from a panic, it says that nobody does any more.
struct Writing<'a>(&'a Queue);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.waiting().being_written = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::metrics::Metrics;
    use crate::origin_client::Origins;
    use crate::service_table::Store;
    use crate::service_table::entry::tests::descriptor;
    use crate::service_table::freshness::Parameters;
    use crate::service_table::rules::Rules;
    use crate::service_table::store::Record;
    use std::time::Duration;
    use weir_shared::process::directory_lock::DirectoryLock;

    fn table(path: &std::path::Path, bound: u64) -> Arc<Table> {
        let parameters = Parameters {
            fresh: Duration::from_secs(15),
            stale_while_revalidate: Duration::from_secs(60),
            wait: Duration::from_secs(2),
            stale_if_error: None,
        };
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap().table;
        let (lock, _) = DirectoryLock::take(path.parent().unwrap()).unwrap();
        let store = Store::open(path, lock).unwrap();
        let origins = Arc::new(Origins::new(Vec::new()));
        let rules = Arc::new(Rules::new([], parameters, false));
        Arc::new(Table::load(store, bound, origins, rules, Clock::begin(), metrics).unwrap())
    }

    /// A descriptor by the event stream.
    fn pushed(service: &str, generation: u64) -> Change {
        let descriptor = descriptor(service, generation, 1, b"content").into();
        let at = Clock::begin().now();
        Change { origin: Some(0), told: Told::Pushed, at, word: Said::Current(descriptor) }
    }

    /// The same in answer to a question that was put when a version was known.
    fn asked(holding: Order, change: Change) -> Change {
        Change { told: Told::Asked(holding), ..change }
    }

    fn take(service: &str, generation: u64) -> Change {
        asked((generation, 1), pushed(service, generation))
    }

    fn bury(service: &str, generation: Option<u64>) -> Change {
        let word = Said::Gone(service.parse().unwrap(), generation);
        Change { origin: Some(0), told: Told::Pushed, at: Clock::begin().now(), word }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_changes_at_once_are_all_on_disk_and_the_highest_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.redb");
        // Only a few are held in memory: the others are read from disk when they are compared.
        let first = table(&path, 8);
        let changes = (0..64u64).flat_map(|n| (0..4u64).map(move |g| (format!("s{n}"), 1 + (g * 7 + n) % 4)));
        let tasks: Vec<_> = changes
            .map(|(service, generation)| {
                let table = first.clone();
                tokio::spawn(async move { table.apply(take(&service, generation)).await.unwrap() })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        // The thread that wrote may not have let go of it yet.
        while Arc::strong_count(&first) > 1 {
            tokio::task::yield_now().await;
        }
        drop(first);
        let second = table(&path, 1000);
        for n in 0..64 {
            let entry = second.hot(&format!("s{n}").parse().unwrap()).unwrap();
            assert_eq!(entry.highest, (4, 1), "{n}");
        }
    }

    #[tokio::test]
    async fn a_tombstone_keeps_the_highest_generation_and_what_was_never_held_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir.path().join("table.redb"), 10);
        assert!(matches!(table.apply(bury("a", None)).await.unwrap(), Outcome::NeverHeld));
        assert!(table.is_empty());
        table.apply(take("a", 5)).await.unwrap();
        table.apply(bury("a", None)).await.unwrap();
        assert!(matches!(table.apply(asked((5, 1), take("a", 4))).await.unwrap(), Outcome::Regressed));
        let entry = table.hot(&"a".parse().unwrap()).unwrap();
        assert!(entry.version.is_none() && entry.highest == (5, 1));
        assert!(matches!(table.apply(take("a", 6)).await.unwrap(), Outcome::Taken(_)));
    }

    #[tokio::test]
    async fn an_answer_that_the_stream_has_overtaken_changes_nothing_and_is_no_regression() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir.path().join("table.redb"), 10);
        table.apply(pushed("a", 5)).await.unwrap();
        // Two questions were put when 5 was known; the stream tells of 6 before their answers come.
        table.apply(pushed("a", 6)).await.unwrap();
        let gone = asked((5, 1), bury("a", None));
        for late in [asked((5, 1), take("a", 5)), gone] {
            let outcome = table.apply(asked((5, 1), late)).await.unwrap();
            assert!(matches!(outcome, Outcome::Held(entry) if entry.highest == (6, 1) && entry.version.is_some()));
        }
        assert_eq!(table.regressions(), 0);
    }

    #[tokio::test]
    async fn a_push_of_something_older_is_refused_and_only_a_question_raises_the_alarm() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir.path().join("table.redb"), 10);
        table.apply(pushed("a", 6)).await.unwrap();
        assert!(matches!(table.apply(pushed("a", 5)).await.unwrap(), Outcome::Regressed));
        let entry = table.hot(&"a".parse().unwrap()).unwrap();
        assert!(entry.highest == (6, 1) && !entry.can_be_vouched_for());
        assert_eq!(table.regressions(), 0);
        assert!(matches!(table.apply(asked((6, 1), take("a", 5))).await.unwrap(), Outcome::Regressed));
        assert_eq!(table.regressions(), 1);
        let later = Clock::begin().now().after(Duration::from_secs(1));
        table.apply(Change { at: later, ..pushed("a", 6) }).await.unwrap();
        assert!(entry.can_be_vouched_for(), "its origin has come to its senses");
    }

    #[tokio::test]
    async fn a_new_form_of_a_version_does_not_say_that_the_version_is_current() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir.path().join("table.redb"), 10);
        table.apply(pushed("a", 5)).await.unwrap();
        let form = |revision| {
            let word = Said::Current(descriptor("a", 5, revision, b"content").into());
            Change { told: Told::AskedForForms((5, 1)), word, ..pushed("a", 5) }
        };
        let outcome = table.apply(form(2)).await.unwrap();
        assert!(matches!(outcome, Outcome::Revised(entry) if entry.can_be_vouched_for()), "as it was before");
        let entry = table.hot(&"a".parse().unwrap()).unwrap();
        entry.doubt(entry.last_word().after(Duration::from_secs(1)));
        for revision in [2, 3] {
            let later = entry.last_word().after(Duration::from_secs(2));
            table.apply(Change { at: later, ..form(revision) }).await.unwrap();
            assert!(!table.hot(&"a".parse().unwrap()).unwrap().can_be_vouched_for(), "{revision}");
        }
    }

    #[tokio::test]
    async fn a_push_touches_the_services_of_its_own_origin_only() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir.path().join("table.redb"), 10);
        table.apply(pushed("a", 5)).await.unwrap();
        for other in [pushed("a", 6), bury("a", Some(9))] {
            let other = Change { origin: Some(1), ..other };
            assert!(matches!(table.apply(other).await.unwrap(), Outcome::AnotherOrigins));
        }
        // A tombstone of an earlier life of the service.
        assert!(matches!(table.apply(bury("a", Some(4))).await.unwrap(), Outcome::Held(_)));
        assert!(matches!(table.apply(bury("a", Some(5))).await.unwrap(), Outcome::Revised(_)));
        // What is gone at one origin may appear at another.
        let moved = Change { origin: Some(1), ..pushed("a", 6) };
        assert!(matches!(table.apply(moved).await.unwrap(), Outcome::Taken(entry) if entry.origin == Some(1)));
    }

    #[tokio::test]
    async fn what_another_origin_answers_with_is_that_one_s_also_when_it_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir.path().join("table.redb"), 10);
        table.apply(pushed("a", 5)).await.unwrap();
        let moved = |change| Change { origin: Some(1), ..change };
        assert!(matches!(table.apply(moved(pushed("a", 5))).await.unwrap(), Outcome::AnotherOrigins));
        let outcome = table.apply(moved(take("a", 5))).await.unwrap();
        assert!(matches!(outcome, Outcome::Revised(entry) if entry.origin == Some(1)));
        assert!(matches!(table.apply(moved(pushed("a", 6))).await.unwrap(), Outcome::Taken(_)));
        assert!(matches!(table.apply(pushed("a", 7)).await.unwrap(), Outcome::AnotherOrigins));
    }

    #[tokio::test]
    async fn a_descriptor_of_the_future_is_no_tombstone_and_its_generation_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.redb");
        {
            let (lock, _) = DirectoryLock::take(dir.path()).unwrap();
            let descriptor = Some(b"a newer one".to_vec());
            let record = Record { highest: (7, 1), origin: String::new(), descriptor, last_word: 0 };
            Store::open(&path, lock).unwrap().put_all(&[("a".parse().unwrap(), record)]).unwrap();
        }
        let table = table(&path, 10);
        let entry = table.hot(&"a".parse().unwrap()).unwrap();
        assert!(entry.is_unreadable && entry.version.is_none());
        assert!(matches!(table.apply(asked((7, 1), take("a", 6))).await.unwrap(), Outcome::Regressed));
        assert!(matches!(table.apply(take("a", 7)).await.unwrap(), Outcome::Revised(entry) if !entry.is_unreadable));
    }
}
