//! Reads and writes the record, and tells publications what is frozen.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus::Registry;
use tokio::sync::{Mutex, Notify};
use weir_protocol::name::FreezeName;
use weir_publish::Freezes;
use weir_rollout::Freeze;
use weir_runtime::shutdown::Drain;
use weir_store::{Expect, PutOutcome, RecordKey, Records};

use super::metrics::FreezeMetrics;
use super::record::{Document, KEY};
use crate::catalog::{Outcome, Precondition};
use crate::fleet::FleetError;
use crate::versions::Versions;

/// How often the record is read again, for changes by other origins, and how late the end of a freeze may be noticed.
const INTERVAL: Duration = Duration::from_secs(5);

/// How often a change is tried when other origins write the record.
const ATTEMPTS: usize = 10;

/// The freezes. Clones are cheap.
#[derive(Clone)]
pub(crate) struct FreezeStore {
    inner: Arc<Inner>,
}

struct Inner {
    records: Records,
    key: RecordKey,
    /// Other origins write the record.
    is_shared: bool,
    stored: Mutex<Stored>,
    shown: Freezes,
    changed: Notify,
    metrics: FreezeMetrics,
}

/// The record as this origin last saw it.
#[derive(Default)]
struct Stored {
    document: Document,
    /// The state that a write replaces. `None`: the record has to be read first.
    expect: Option<Expect>,
}

impl FreezeStore {
    /// Reads the record, before anything is published. Until it could be read, nothing new is.
    pub(crate) async fn start(
        records: &Records,
        shown: Freezes,
        is_shared: bool,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let (records, key) = (records.clone(), KEY.parse().expect("a valid key"));
        let (stored, changed, metrics) = (Mutex::default(), Notify::new(), FreezeMetrics::register(registry)?);
        shown.set(None);
        let store = Self { inner: Arc::new(Inner { records, key, is_shared, stored, shown, changed, metrics }) };
        // The task tells of an error, and reads it again.
        let _ = store.read().await;
        Ok(store)
    }

    /// Follows the record until the drain, and has services resolved again whose freeze has ended.
    pub(crate) fn follow(&self, versions: Versions, drain: &Drain) {
        let (store, draining) = (self.clone(), drain.clone());
        drain.spawn(async move {
            tokio::select! {
                () = draining.begun() => {}
                () = store.run(&versions) => {}
            }
        });
    }

    async fn run(&self, versions: &Versions) {
        let Inner { shown, metrics, .. } = &*self.inner;
        // The last logged error, so that each is logged once.
        let (mut before, mut logged) = (shown.in_force(SystemTime::now()), String::new());
        loop {
            let error = self.read_again().await.err().map(|error| error.to_string()).unwrap_or_default();
            if !error.is_empty() && error != logged {
                tracing::error!(error, "the freezes cannot be read; those that were read last apply");
            }
            logged = error;
            let now = SystemTime::now();
            let after = shown.in_force(now);
            metrics.freezes.set(after.as_ref().map_or(0, |all| i64::try_from(all.len()).unwrap_or(i64::MAX)));
            if after != before {
                self.resolve_again(before.as_deref(), versions, now);
            }
            before = after;
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.inner.changed.notified() => {}
            }
        }
    }

    /// Has the services resolved again that were frozen and are not any more. `before`: `None`, all were.
    fn resolve_again(&self, before: Option<&[Freeze]>, versions: &Versions, now: SystemTime) {
        for service in versions.catalog.snapshot().services.values() {
            let was_frozen = before.is_none_or(|before| before.iter().any(|freeze| freeze.covers(&service.name)));
            if was_frozen && self.inner.shown.of(&service.name, now).is_none() {
                versions.resolve_again(service);
            }
        }
    }

    /// The freezes in force, also those that another origin has just written.
    pub(crate) async fn list(&self, now: SystemTime) -> Result<Vec<Freeze>, FleetError> {
        self.read_again().await?;
        Ok(self.inner.shown.in_force(now).unwrap_or_default())
    }

    /// The freeze of a name that is in force, as this origin knows it.
    pub(crate) fn get(&self, name: &FreezeName, now: SystemTime) -> Option<Freeze> {
        self.inner.shown.in_force(now)?.into_iter().find(|freeze| freeze.name == *name)
    }

    /// Creates, replaces or deletes a freeze. `new`: `None` to delete it. `may`: refuses by what is there before.
    pub(crate) async fn edit<E: From<FleetError>>(
        &self,
        name: &FreezeName,
        new: Option<&Freeze>,
        precondition: &Precondition,
        may: impl Fn(&Freeze) -> Result<(), E>,
    ) -> Result<Outcome, E> {
        // One change at a time; other origins are met by compare-and-set.
        let mut stored = self.inner.stored.lock().await;
        for _ in 0..ATTEMPTS {
            let now = SystemTime::now();
            self.read_into(&mut stored).await?;
            stored.document.get(name, now).map_or(Ok(()), &may)?;
            let (outcome, document) = stored.document.changed(name, new, precondition, now)?;
            if outcome == Outcome::Unchanged || self.write(&mut stored, document).await? {
                self.inner.changed.notify_one();
                return Ok(outcome);
            }
        }
        Err(FleetError::Contended("freezes").into())
    }

    /// Reads the record if another origin may have written it, or if it could not be read.
    async fn read_again(&self) -> Result<(), FleetError> {
        let mut stored = self.inner.stored.lock().await;
        if self.inner.is_shared || stored.expect.is_none() { self.read_into(&mut stored).await } else { Ok(()) }
    }

    async fn read(&self) -> Result<(), FleetError> {
        self.read_into(&mut *self.inner.stored.lock().await).await
    }

    async fn read_into(&self, stored: &mut Stored) -> Result<(), FleetError> {
        let read = self.inner.records.get(&self.inner.key).await;
        let read = read.map_err(|error| FleetError::Unreadable(error.to_string())).and_then(|record| {
            let document = record.as_ref().map(|record| Document::parse(&record.bytes)).transpose()?;
            Ok((document.unwrap_or_default(), record.map_or(Expect::Absent, |record| Expect::Version(record.version))))
        });
        self.inner.metrics.readable.set(read.is_ok().into());
        let (document, expect) = read.inspect_err(|_| stored.expect = None)?;
        stored.expect = Some(expect);
        // An earlier revision: the record was lost, or its previous copy was read. The next change writes all again.
        if document.revision >= stored.document.revision {
            stored.document = document;
        }
        self.inner.shown.set(Some(stored.document.freezes.clone()));
        Ok(())
    }

    /// Returns false if another origin wrote meanwhile.
    async fn write(&self, stored: &mut Stored, document: Document) -> Result<bool, FleetError> {
        let bytes = document.to_bytes()?;
        // Until the outcome is known.
        let Some(expect) = stored.expect.take() else { return Ok(false) };
        let Inner { records, key, .. } = &*self.inner;
        let version = match records.put(key, bytes.clone(), expect).await {
            PutOutcome::Done(version) => version,
            PutOutcome::Conflict => return Ok(false),
            PutOutcome::Unknown(error) => match records.get(key).await {
                Ok(Some(record)) if record.bytes == bytes => record.version,
                _ => return Err(FleetError::Unknown(error.to_string())),
            },
        };
        stored.expect = Some(Expect::Version(version));
        stored.document = document;
        self.inner.shown.set(Some(stored.document.freezes.clone()));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use weir_publish::Frozen;
    use weir_store::StoreMetrics;
    use weir_store::testing::{FaultyEngine, WriteFault};

    use super::*;

    async fn origin(engine: &Arc<FaultyEngine>) -> (FreezeStore, Freezes) {
        let (shown, registry) = (Freezes::default(), Registry::new());
        let records = Records::over(engine.clone(), StoreMetrics::register(&registry).unwrap());
        (FreezeStore::start(&records, shown.clone(), true, &registry).await.unwrap(), shown)
    }

    async fn put(origin: &FreezeStore, name: &str) -> Result<Outcome, FleetError> {
        let services = vec!["shop-*".parse().unwrap()];
        let freeze = Freeze { name: name.parse().unwrap(), services, until: None, reason: None };
        origin.edit(&freeze.name, Some(&freeze), &Precondition::default(), |_| Ok(())).await
    }

    async fn names(origin: &FreezeStore) -> Vec<String> {
        let all = origin.list(SystemTime::now()).await.unwrap();
        all.iter().map(|freeze| freeze.name.to_string()).collect()
    }

    #[tokio::test]
    async fn all_origins_follow_one_record_and_what_cannot_be_read_freezes_what_it_did() {
        let dir = tempfile::tempdir().unwrap();
        let engine = FaultyEngine::local(dir.path());
        let ((one, _), (two, of_two)) = (origin(&engine).await, origin(&engine).await);
        let (shop, now) = ("shop-a".parse().unwrap(), SystemTime::now());
        assert_eq!(of_two.of(&shop, now), None);
        assert_eq!(put(&one, "a").await.unwrap(), Outcome::Created);
        assert_eq!(put(&two, "b").await.unwrap(), Outcome::Created);
        assert_eq!(
            (names(&one).await, names(&two).await),
            (vec!["a".into(), "b".into()], vec!["a".into(), "b".into()])
        );
        engine.fail_writes([WriteFault::Unconfirmed]);
        assert_eq!(put(&one, "c").await.unwrap(), Outcome::Created);
        engine.fail_writes([WriteFault::Lost]);
        assert!(matches!(put(&one, "d").await, Err(FleetError::Unknown(_))));
        assert_eq!(names(&one).await, ["a", "b", "c"]);

        for copy in ["record", "previous"] {
            std::fs::write(dir.path().join(format!("cluster/freezes.{copy}")), "damaged").unwrap();
        }
        assert!(matches!(two.list(now).await, Err(FleetError::Unreadable(_))));
        assert!(matches!(put(&two, "e").await, Err(FleetError::Unreadable(_))));
        assert!(matches!(of_two.of(&shop, now), Some(Frozen::By(_))), "what was read last applies");
        let (_, of_new) = origin(&engine).await;
        assert_eq!(of_new.of(&"blog".parse().unwrap(), now), Some(Frozen::Unknown));
    }
}
