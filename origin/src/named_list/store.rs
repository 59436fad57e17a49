//! Reads and writes the record, and hands on what it lists.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus::IntGauge;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;
use weir_runtime::shutdown::Drain;
use weir_store::{Expect, PutOutcome, RecordKey, Records};

use super::record::{Document, Item};
use crate::catalog::{Outcome, Precondition};
use crate::fleet::FleetError;

/// How often the record is read again, for changes of which another origin could not tell this one.
const INTERVAL: Duration = Duration::from_secs(15);

/// How often it is tried again while it cannot be read.
const RETRY: Duration = Duration::from_secs(5);

/// How often a change is tried when other origins write the record.
const ATTEMPTS: usize = 10;

/// What gets the list whenever it was read or written. `None`: it could not be read yet.
type Show<T> = Box<dyn Fn(Option<Vec<T>>) + Send + Sync>;

/// The documents of a record. Clones are cheap.
pub(crate) struct NamedList<T: Item> {
    inner: Arc<Inner<T>>,
}

impl<T: Item> Clone for NamedList<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<T> {
    records: Records,
    key: RecordKey,
    /// Other origins write the record.
    is_shared: bool,
    stored: Mutex<Stored<T>>,
    show: Show<T>,
    changed: Notify,
    /// 1 while the record can be read.
    readable: IntGauge,
}

/// The record as this origin last saw it.
struct Stored<T> {
    document: Document<T>,
    /// The state that a write replaces. `None`: the record has to be read first.
    expect: Option<Expect>,
    /// When the last read began, and why it failed.
    read_at: Option<Instant>,
    failed: Option<String>,
}

fn key<T: Item>() -> RecordKey {
    T::KEY.parse().expect("a valid key")
}

/// What a record lists, for a process that does not follow it.
pub(crate) async fn read_once<T: Item>(records: &Records) -> Result<Vec<T>, FleetError> {
    let read = records.get(&key::<T>()).await.map_err(|error| FleetError::Unreadable(error.to_string()))?;
    read.map_or(Ok(Vec::new()), |record| Document::parse(&record.bytes).map(|document| document.items))
}

impl<T: Item> NamedList<T> {
    /// Reads the record. An error is no error of the start: [`NamedList::follow`] tells of it, and reads again.
    pub(crate) async fn start(records: &Records, is_shared: bool, show: Show<T>, readable: IntGauge) -> Self {
        show(None);
        let stored = Mutex::new(Stored { document: Document::default(), expect: None, read_at: None, failed: None });
        let (records, key, changed) = (records.clone(), key::<T>(), Notify::new());
        let list = Self { inner: Arc::new(Inner { records, key, is_shared, stored, show, changed, readable }) };
        let _ = list.read_again().await;
        list
    }

    /// Reads the record again and again until the drain. `each` is called after each read and after each change, and returns
    /// after which time something ends by itself.
    pub(crate) fn follow(&self, drain: &Drain, mut each: impl FnMut(SystemTime) -> Option<Duration> + Send + 'static) {
        let (list, draining) = (self.clone(), drain.clone());
        drain.spawn(async move {
            // The last logged error, so that each is logged once.
            let mut logged = String::new();
            loop {
                let error = list.read_again().await.err().map(|error| error.to_string()).unwrap_or_default();
                if !error.is_empty() && error != logged {
                    tracing::error!(error, "the {} cannot be read; those that were read last apply", T::LIST);
                }
                let interval = if error.is_empty() { INTERVAL } else { RETRY };
                logged = error;
                let ends = each(SystemTime::now());
                tokio::select! {
                    () = draining.begun() => return,
                    () = tokio::time::sleep(ends.map_or(interval, |ends| ends.min(interval))) => {}
                    () = list.inner.changed.notified() => {}
                }
            }
        });
    }

    /// Something else changed that [`NamedList::follow`] looks at.
    pub(crate) fn notify(&self) {
        self.inner.changed.notify_one();
    }

    /// Creates, replaces or deletes a document. `new`: `None` to delete it. `may`: refuses by what is there before.
    pub(crate) async fn edit<E: From<FleetError>>(
        &self,
        name: &str,
        new: Option<&T>,
        precondition: &Precondition,
        may: impl Fn(&T) -> Result<(), E>,
    ) -> Result<Outcome, E> {
        // One change at a time; other origins are met by compare-and-set.
        let mut stored = self.inner.stored.lock().await;
        for _ in 0..ATTEMPTS {
            let now = SystemTime::now();
            self.read_into(&mut stored).await?;
            stored.document.get(name, now).map_or(Ok(()), &may)?;
            let (outcome, document) = stored.document.changed(name, new, precondition, now)?;
            let written =
                if outcome == Outcome::Unchanged { Ok(true) } else { self.write(&mut stored, document).await };
            if !matches!(written, Ok(false)) {
                // Also of an unknown outcome.
                self.notify();
                return written.map(|_| outcome).map_err(E::from);
            }
        }
        Err(FleetError::Contended(T::LIST).into())
    }

    /// Says what [`NamedList::edit`] would do, and changes nothing.
    pub(crate) async fn check(
        &self,
        name: &str,
        new: Option<&T>,
        precondition: &Precondition,
    ) -> Result<Outcome, FleetError> {
        let mut stored = self.inner.stored.lock().await;
        self.read_into(&mut stored).await?;
        let (outcome, document) = stored.document.changed(name, new, precondition, SystemTime::now())?;
        document.to_bytes().map(|_| outcome)
    }

    /// Reads the record if another origin may have written it, or if it could not be read.
    pub(crate) async fn read_again(&self) -> Result<(), FleetError> {
        let asked = Instant::now();
        let mut stored = self.inner.stored.lock().await;
        // All share a read who have waited for it, so that nobody waits for the timeouts of others.
        let is_new = stored.read_at.is_some_and(|read| read >= asked);
        match &stored.failed {
            Some(failed) if is_new => Err(FleetError::Unreadable(failed.clone())),
            _ if stored.expect.is_some() && (is_new || !self.inner.is_shared) => Ok(()),
            _ => self.read_into(&mut stored).await,
        }
    }

    async fn read_into(&self, stored: &mut Stored<T>) -> Result<(), FleetError> {
        let begun = Instant::now();
        let read = self.inner.records.get(&self.inner.key).await;
        // Not before: a read whose caller has gone is none.
        stored.read_at = Some(begun);
        let read = read.map_err(|error| FleetError::Unreadable(error.to_string())).and_then(|record| {
            let document = record.as_ref().map(|record| Document::parse(&record.bytes)).transpose()?;
            Ok((document.unwrap_or_default(), record.map_or(Expect::Absent, |record| Expect::Version(record.version))))
        });
        self.inner.readable.set(read.is_ok().into());
        stored.failed = match &read {
            Err(FleetError::Unreadable(text)) => Some(text.clone()),
            _ => None,
        };
        let (document, expect) = read.inspect_err(|_| stored.expect = None)?;
        stored.expect = Some(expect);
        // An earlier revision: the record was lost, or its previous copy was read. The next change writes all again.
        if document.revision >= stored.document.revision && document != stored.document {
            stored.document = document;
            // Whoever read it: what follows from the change is done at once.
            self.notify();
        }
        (self.inner.show)(Some(stored.document.items.clone()));
        Ok(())
    }

    /// Returns false if another origin wrote meanwhile.
    async fn write(&self, stored: &mut Stored<T>, document: Document<T>) -> Result<bool, FleetError> {
        let bytes = document.to_bytes()?;
        // Until the outcome is known.
        let Some(expect) = stored.expect.take() else { return Ok(false) };
        let (records, key) = (&self.inner.records, &self.inner.key);
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
        (self.inner.show)(Some(stored.document.items.clone()));
        Ok(true)
    }
}
