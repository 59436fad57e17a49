//! The one task that writes a repository's record. It applies all queued changes to one draft, stores its objects,
//! replaces the record, and then makes the changes visible.
//!
//! An unknown outcome is resolved before anything else is written: the same bytes are put again, or are found to be
//! stored already.
//!
//! In a cluster it writes only while this origin owns the repository (`ownership.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use weir_model::failpoint;
use weir_protocol::event::EventKind;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_source::DataDir;
use weir_store::{Expect, MAX_RECORD_BYTES, Objects, PutOutcome, RecordKey, Records, Version};

use super::delta_queue::DeltaQueue;
use super::draft::{Change, Draft, Rules, VisibleChange};
use super::error::PublishError;
use super::homes::Homes;
use super::known::{Known, SuspendedUntil, Suspension};
use super::load::{Loaded, ReadError, load, read_pages};
use super::metrics::PublishMetrics;
use super::ownership::{LastRead, TakeError};
use super::page;
use super::pending_change::{Applied, PendingChange};
use super::protection::{Protected, Protection};
use super::record::RepositoryRecord;
use super::row::{Definition, Row};
use super::state_write::StateWriter;
use super::write_pace::WritePace;
use crate::event_log::EventLog;
use crate::validity::Validity;

/// The most queued changes of one repository; further callers wait.
pub(super) const MAX_WAITING: usize = 256;

/// An unknown outcome, and an unreadable repository, are retried after this time, or with the next change before.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The waits before a refused write of a record that has not changed is repeated: a store may refuse one of two writes
/// at the same time, although it carries out neither.
const CONFLICT_WAITS: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(400), Duration::from_secs(1)];

/// Shared by the writers of all repositories.
pub(super) struct Shared {
    pub(super) objects: Objects,
    pub(super) records: Records,
    pub(super) rules: Rules,
    pub(super) grace_period: Duration,
    pub(super) events: Arc<EventLog>,
    pub(super) metrics: PublishMetrics,
    /// Notified after each write of a record.
    pub(super) written: Notify,
    /// The services with a new publication, for which deltas are to be made.
    pub(super) delta_queue: DeltaQueue,
    /// Notified after each reload of a repository.
    pub(super) reloaded: Notify,
    pub(super) homes: Homes,
    /// The repositories whose last reload the catalog has not applied.
    pub(super) unapplied: std::sync::Mutex<BTreeSet<RepositoryName>>,
    /// Until when this origin may act for what it owns.
    pub(super) validity: Validity,
    /// Receives the repositories whose record another origin wrote. `None`: this is the only origin, and owns everything.
    pub(super) superseded: Option<mpsc::UnboundedSender<RepositoryName>>,
    /// The lock of the data directory.
    pub(super) _data_dir: DataDir,
}

/// The state of a repository that requests and its writer share.
pub(super) struct Repository {
    pub(super) name: RepositoryName,
    known: RwLock<Known>,
    pub(super) protected: Arc<Protected>,
    /// Locked from before changes are applied until they are visible.
    pub(super) committing: Mutex<()>,
    /// The record was written since the last garbage collection.
    pub(super) is_dirty: AtomicBool,
    /// Counts reloads of the stored state.
    pub(super) reloads: AtomicU64,
    /// The last of these reloads whose definitions the catalog has applied.
    pub(super) applied_reloads: AtomicU64,
    /// The services that were read again since then, with the documents of operators.
    unapplied: std::sync::Mutex<BTreeMap<ServiceName, Option<Definition>>>,
    /// Whether this origin owns the repository. Locked while a change is announced: none is announced afterwards.
    taken: std::sync::Mutex<bool>,
    /// Counts the services that moved away, so that what was found out about a service before is not relied on after.
    pub(super) withdrawals: AtomicU64,
    /// Locked while unreferenced objects are deleted.
    pub(super) deleting: Mutex<()>,
    /// The last read of a repository that this origin does not own. Locked during the next one.
    pub(super) last_read: Mutex<LastRead>,
}

pub(super) enum Request {
    Change(Box<PendingChange>),
    /// An operator accepts the readable state. The answer is false if the repository was not suspended.
    Confirm(oneshot::Sender<Result<bool, PublishError>>),
    /// This origin owns the repository from this version of its record on.
    Take(Version, oneshot::Sender<Result<(), TakeError>>),
    /// This origin owns the repository no more. The answer: no write has an unknown outcome.
    Release(oneshot::Sender<bool>),
    /// Reads the state again, unless this origin owns the repository.
    Refresh(oneshot::Sender<Result<(), PublishError>>),
}

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) repository: Arc<Repository>,
    pub(super) key: RecordKey,
    /// A write with an unknown outcome.
    pub(super) outstanding: Option<Prepared>,
    pace: WritePace,
    retry_at: Instant,
}

/// A state whose objects are stored, ready to be written.
pub(super) struct Prepared {
    record: RepositoryRecord,
    bytes: Bytes,
    rows: Vec<Row>,
    visible: Vec<VisibleChange>,
    dropped_versions: usize,
    /// Protect the objects until the record names them.
    _protections: Vec<Protection>,
}

enum NotWritten {
    Unknown(String),
    /// Another writer replaced the record.
    Superseded,
    /// This origin does not own the repository.
    NotOwner,
}

impl Repository {
    pub(super) fn new(name: RepositoryName, known: Known, is_taken: bool) -> Self {
        let (known, is_dirty) = (RwLock::new(known), AtomicBool::new(true));
        let (protected, committing, deleting) = (Arc::default(), Mutex::default(), Mutex::default());
        Self {
            name,
            known,
            protected,
            committing,
            is_dirty,
            reloads: AtomicU64::new(0),
            applied_reloads: AtomicU64::new(0),
            unapplied: std::sync::Mutex::default(),
            taken: std::sync::Mutex::new(is_taken),
            withdrawals: AtomicU64::new(0),
            deleting,
            last_read: Mutex::default(),
        }
    }

    /// Whether this origin owns the repository, as long as the guard lives.
    pub(super) fn taken(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_taken(&self) -> bool {
        *self.taken()
    }

    /// The services that were read again since the last call, with the documents of operators.
    pub(super) fn take_unapplied(&self) -> BTreeMap<ServiceName, Option<Definition>> {
        std::mem::take(&mut *self.unapplied.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The durable state.
    pub(super) fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_known(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn suspension(&self) -> Option<Suspension> {
        self.known().suspension.clone()
    }

    /// Whether the repository is suspended because the store did not answer.
    pub(super) fn is_unread(&self) -> bool {
        self.known().suspension.as_ref().is_some_and(|suspension| suspension.until == SuspendedUntil::Read)
    }

    /// Whether the catalog may lack definitions of this repository.
    pub(super) fn may_have_unknown_definitions(&self) -> bool {
        // Read in this order: a reload is counted before its suspension ends.
        let is_suspended = self.known().suspension.is_some();
        is_suspended || self.reloads.load(Ordering::SeqCst) != self.applied_reloads.load(Ordering::SeqCst)
    }
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, repository: Arc<Repository>) -> Self {
        let (key, now) = (RecordKey::repository(&repository.name), Instant::now());
        let pace = if shared.records.are_local() { WritePace::Unlimited } else { WritePace::of_record(now) };
        Self { shared, repository, key, outstanding: None, pace, retry_at: now + RETRY_INTERVAL }
    }

    /// Runs until all senders are gone. The step is boxed: the waiting task of each repository needs no room for it.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        loop {
            let request = tokio::select! {
                request = requests.recv() => request,
                () = sleep_until(self.retry_at), if self.outstanding.is_some() || self.repository.is_unread() => {
                    Box::pin(self.commit(Vec::new())).await;
                    continue;
                }
            };
            let mut changes = Vec::new();
            match request {
                None => return,
                Some(Request::Change(first)) => changes.push(*first),
                Some(other) => {
                    Box::pin(self.handle(other)).await;
                    continue;
                }
            }
            if let Some(allowed) = self.pace.next_write().filter(|_| self.repository.is_taken()) {
                sleep_until(allowed).await;
            }
            let mut other = None;
            while changes.len() < MAX_WAITING && other.is_none() {
                match requests.try_recv() {
                    Ok(Request::Change(change)) => changes.push(*change),
                    Ok(request) => other = Some(request),
                    Err(_) => break,
                }
            }
            Box::pin(self.commit(changes)).await;
            if let Some(request) = other {
                Box::pin(self.handle(request)).await;
            }
        }
    }

    /// Handles a request. The caller may have gone.
    async fn handle(&mut self, request: Request) {
        match request {
            Request::Change(change) => self.commit(vec![*change]).await,
            Request::Confirm(done) => self.confirm(done).await,
            Request::Take(version, done) => {
                let taken = self.take(&version).await;
                if done.send(taken).is_err() {
                    // Nobody would release it.
                    *self.repository.taken() = false;
                }
            }
            Request::Release(done) => drop(done.send(self.release())),
            Request::Refresh(done) => drop(done.send(self.refresh().await)),
        }
    }

    async fn commit(&mut self, changes: Vec<PendingChange>) {
        let repository = self.repository.clone();
        let _committing = repository.committing.lock().await;
        if let Err(error) = self.resolve_outstanding().await {
            return changes.into_iter().for_each(|change| change.refuse(error.clone()));
        }
        let record = repository.known().record.clone();
        let mut positions: Vec<usize> = changes
            .iter()
            .flat_map(|change| change.services.iter().map(|service| page::position(&record.pages, service)))
            .collect();
        positions.sort_unstable();
        positions.dedup();
        let pages = match read_pages(&self.shared.objects, &repository.name, &record.pages, positions).await {
            Ok(pages) => pages,
            Err(error) => {
                if let ReadError::Damaged(reason) = &error {
                    self.suspend(reason);
                }
                let error = PublishError::from(error);
                return changes.into_iter().for_each(|change| change.refuse(error.clone()));
            }
        };
        let rules = self.shared.rules.clone();
        let mut draft = Draft::new(&rules, record, pages);
        let (mut applied, mut protections) = (Vec::new(), Vec::new());
        for mut change in changes {
            let attempt = change.attempt.take();
            let in_time = attempt.as_ref().map_or(Ok(()), |(_, time)| time.check(std::time::Instant::now()));
            match in_time {
                Ok(()) => applied.push(change.apply(&mut draft)),
                Err(expired) => change.refuse(expired),
            }
            protections.extend(attempt.map(|(protection, _)| protection));
        }
        let result = self.write(draft, &mut applied, protections).await;
        applied.iter_mut().for_each(|applied| applied.reply(result.clone()));
    }

    /// Makes a draft durable, then visible.
    async fn write(
        &mut self,
        draft: Draft<'_>,
        applied: &mut [Applied],
        protections: Vec<Protection>,
    ) -> Result<(), PublishError> {
        let visible: Vec<VisibleChange> =
            applied.iter_mut().flat_map(|applied| std::mem::take(&mut applied.visible)).collect();
        let known_keys = draft.known_keys.clone();
        if draft.is_changed() {
            let prepared = Box::pin(self.prepare(draft, visible, protections)).await?;
            self.pace.count_write(Instant::now());
            self.put_or_retry(prepared, false).await?;
        } else {
            visible.into_iter().for_each(|visible| self.show(visible));
        }
        let mut known = self.repository.change_known();
        for (service, key) in known_keys {
            if let Some(known) = known.services.get_mut(&service) {
                known.other_key = Some(key);
            }
        }
        Ok(())
    }

    async fn prepare(
        &self,
        draft: Draft<'_>,
        visible: Vec<VisibleChange>,
        mut protections: Vec<Protection>,
    ) -> Result<Prepared, PublishError> {
        let before = self.repository.known().record.clone();
        let dropped_versions = draft.dropped_versions;
        let (mut record, pages, rows, lines) = draft.into_parts();
        let protection = Protection::new(self.repository.protected.clone());
        let writer = StateWriter {
            objects: &self.shared.objects,
            repository: &self.repository.name,
            metrics: &self.shared.metrics,
            protection: &protection,
        };
        writer.write_pages(&mut record, pages).await?;
        writer.append_history(&mut record, &lines, SystemTime::now()).await?;
        failpoint!("the objects are durable");
        protections.push(protection);
        let record = record.following(&before);
        let bytes = record.to_bytes();
        if bytes.len() > MAX_RECORD_BYTES {
            let error = format!("it would have {} bytes, more than {MAX_RECORD_BYTES}", bytes.len());
            return Err(PublishError::Record(error));
        }
        Ok(Prepared { record, bytes, rows, visible, dropped_versions, _protections: protections })
    }

    /// Puts a record. After an unknown outcome it is put again later (`is_repeated`).
    async fn put_or_retry(&mut self, prepared: Prepared, is_repeated: bool) -> Result<(), PublishError> {
        match self.put(&prepared.bytes).await {
            Ok(version) => {
                failpoint!("the record is written");
                self.adopt(prepared, version);
                failpoint!("the publication is shown");
                Ok(())
            }
            Err(NotWritten::Unknown(cause)) => {
                self.outstanding = Some(prepared);
                self.retry_at = Instant::now() + RETRY_INTERVAL;
                Err(PublishError::UnknownOutcome(cause))
            }
            Err(NotWritten::NotOwner) => {
                self.outstanding = Some(prepared).filter(|_| is_repeated);
                Err(self.not_owner())
            }
            Err(NotWritten::Superseded) => {
                if let Some(superseded) = &self.shared.superseded {
                    tracing::warn!(repository = %self.repository.name, "another origin has written the record of the repository: this origin no longer publishes there");
                    *self.repository.taken() = false;
                    // The receiver is gone only at a stop.
                    let _ = superseded.send(self.repository.name.clone());
                    return Err(self.not_owner());
                }
                self.suspend("its record was replaced by another writer while this origin ran");
                self.refuse_suspended()
            }
        }
    }

    async fn put(&self, bytes: &Bytes) -> Result<Version, NotWritten> {
        let before = self.repository.known().version.clone();
        let mut waits = CONFLICT_WAITS.into_iter();
        loop {
            if !self.may_write() {
                return Err(NotWritten::NotOwner);
            }
            let expect = before.clone().map_or(Expect::Absent, Expect::Version);
            let (word, cause) = match self.shared.records.put(&self.key, bytes.clone(), expect).await {
                PutOutcome::Done(version) => {
                    self.shared.metrics.record_writes.with_label_values(&["done"]).inc();
                    return Ok(version);
                }
                PutOutcome::Conflict => ("conflict", None),
                PutOutcome::Unknown(cause) => ("unknown", Some(cause.to_string())),
            };
            self.shared.metrics.record_writes.with_label_values(&[word]).inc();
            // Bytes that can be read are durable.
            match (self.shared.records.get(&self.key).await, cause) {
                (Ok(Some(record)), _) if record.bytes == *bytes => return Ok(record.version),
                (Ok(record), cause) if record.as_ref().map(|record| &record.version) == before.as_ref() => {
                    match (cause, waits.next()) {
                        (Some(cause), _) => return Err(NotWritten::Unknown(cause)),
                        (None, Some(wait)) => sleep(wait).await,
                        (None, None) => {
                            let cause = "the store refuses it, although the record has not changed";
                            return Err(NotWritten::Unknown(cause.to_owned()));
                        }
                    }
                }
                (Ok(_), _) => return Err(NotWritten::Superseded),
                (Err(error), _) => return Err(NotWritten::Unknown(error.to_string())),
            }
        }
    }

    /// Whether this origin owns the repository now.
    pub(super) fn may_write(&self) -> bool {
        self.repository.is_taken() && self.shared.validity.holds()
    }

    pub(super) fn not_owner(&self) -> PublishError {
        PublishError::NotOwner(self.repository.name.clone())
    }

    /// Resolves an unknown outcome, and reloads an unread state, before the next write.
    async fn resolve_outstanding(&mut self) -> Result<(), PublishError> {
        if !self.may_write() {
            self.retry_at = Instant::now() + RETRY_INTERVAL;
            if self.repository.is_unread() {
                self.refresh().await?;
            }
            return Err(self.not_owner());
        }
        if let Some(outstanding) = self.outstanding.take() {
            Box::pin(self.put_or_retry(outstanding, true)).await?;
            tracing::info!(repository = %self.repository.name, "a record whose write had an unknown outcome is written");
        }
        match self.repository.suspension() {
            None => Ok(()),
            Some(suspension) if suspension.until != SuspendedUntil::Read => self.refuse_suspended(),
            Some(_) => {
                let loaded = self.load().await;
                self.retry_at = Instant::now() + RETRY_INTERVAL;
                self.replace_known(loaded);
                self.refuse_suspended()
            }
        }
    }

    /// Makes the readable state the current one.
    async fn confirm(&mut self, done: oneshot::Sender<Result<bool, PublishError>>) {
        let repository = self.repository.clone();
        let _committing = repository.committing.lock().await;
        let confirmed = Box::pin(self.accept_stored_state()).await;
        let _ = done.send(confirmed);
    }

    async fn accept_stored_state(&mut self) -> Result<bool, PublishError> {
        let Some(confirmed) = self.repository.suspension() else { return Ok(false) };
        if !self.may_write() {
            return Err(self.not_owner());
        }
        if confirmed.until == SuspendedUntil::Restarted {
            return self.refuse_suspended().map(|()| false);
        }
        let mut loaded = self.load().await;
        match loaded.known.suspension.take() {
            Some(now) if now.until == SuspendedUntil::Read => return Err(PublishError::Object(now.reason)),
            Some(now) if now.reason != confirmed.reason => {
                self.suspend(&now.reason);
                return self.refuse_suspended().map(|()| false);
            }
            _ => {}
        }
        self.outstanding = None;
        let (record, replaced) = (loaded.known.record.clone(), std::mem::take(&mut loaded.replaced));
        self.replace_known(loaded);
        let rules = self.shared.rules.clone();
        let mut draft = Draft::new(&rules, record, replaced);
        draft.set_changed();
        let result = self.write(draft, &mut [], Vec::new()).await;
        if let Err(error) = result {
            self.suspend_for(confirmed);
            return Err(error);
        }
        tracing::warn!(repository = %self.repository.name, "an operator confirmed the state of the repository; publishing continues");
        Ok(true)
    }

    /// Reads the stored state, but of its pages only those that are not known.
    pub(super) async fn load(&self) -> Loaded {
        let pages = {
            let known = self.repository.known();
            // What is in memory may stand in for a damaged page.
            if known.suspension.is_none() { known.record.pages.clone() } else { Vec::new() }
        };
        let Shared { objects, records, .. } = &*self.shared;
        let mut loaded = load(objects, records, &self.repository.name, &pages).await;
        loaded.complete(&self.repository.known());
        loaded
    }

    /// Suspends after damage during this run.
    fn suspend(&self, reason: &str) {
        let reason = format!("{reason}; restart the origin, compare, then confirm");
        self.suspend_for(Suspension { since: SystemTime::now(), reason, until: SuspendedUntil::Restarted });
    }

    fn suspend_for(&self, suspension: Suspension) {
        let reason = &suspension.reason;
        tracing::error!(repository = %self.repository.name, reason, "publishing is suspended for the repository");
        let before = self.repository.change_known().suspension.replace(suspension);
        self.shared.metrics.suspended_repositories.add(i64::from(before.is_none()));
    }

    fn refuse_suspended(&self) -> Result<(), PublishError> {
        let refused =
            |Suspension { reason, .. }| PublishError::Suspended { repository: self.repository.name.clone(), reason };
        self.repository.suspension().map_or(Ok(()), |suspension| Err(refused(suspension)))
    }

    pub(super) fn replace_known(&self, Loaded { known: next, read, .. }: Loaded) {
        self.repository.unapplied.lock().unwrap_or_else(PoisonError::into_inner).extend(read);
        let mut known = self.repository.change_known();
        for service in known.services.keys().filter(|service| !next.services.contains_key(*service)) {
            self.shared.homes.set(service, &self.repository.name, None);
        }
        for (service, next) in &next.services {
            self.shared.homes.set(service, &self.repository.name, next.defined_at);
        }
        self.count_retained(known.retained(), next.retained());
        let suspended = i64::from(next.suspension.is_some()) - i64::from(known.suspension.is_some());
        self.shared.metrics.suspended_repositories.add(suspended);
        *known = next;
        // Counted before the suspension ends, so that no reader sees neither.
        let mut unapplied = self.shared.unapplied.lock().unwrap_or_else(PoisonError::into_inner);
        unapplied.insert(self.repository.name.clone());
        self.repository.reloads.fetch_add(1, Ordering::SeqCst);
        drop(unapplied);
        drop(known);
        self.shared.reloaded.notify_one();
    }

    /// Takes over a state that has become durable.
    fn adopt(&self, prepared: Prepared, version: Version) {
        let now = std::time::Instant::now();
        {
            let mut known = self.repository.change_known();
            let before = known.retained();
            known.record = prepared.record;
            known.version = Some(version);
            for row in &prepared.rows {
                known.take(row, now);
                let written_at = row.definition.as_ref().map(|definition| definition.written_at);
                self.shared.homes.set(&row.service, &self.repository.name, written_at);
            }
            self.count_retained(before, known.retained());
        }
        {
            let mut unapplied = self.repository.unapplied.lock().unwrap_or_else(PoisonError::into_inner);
            for row in &prepared.rows {
                if let Some(definition) = unapplied.get_mut(&row.service) {
                    definition.clone_from(&row.definition);
                }
            }
        }
        let dropped = self.shared.metrics.expired_versions.with_label_values(&["versions"]);
        dropped.inc_by(prepared.dropped_versions as u64);
        self.repository.is_dirty.store(true, Ordering::Relaxed);
        prepared.visible.into_iter().for_each(|visible| self.show(visible));
        self.shared.written.notify_one();
    }

    fn count_retained(&self, before: usize, after: usize) {
        self.shared.metrics.retained_versions.add(after as i64 - before as i64);
    }

    /// Makes a durable change visible, and announces it to edges: in a cluster only as the owner, because an announcement
    /// claims that this origin follows the service.
    fn show(&self, VisibleChange { service, change }: VisibleChange) {
        let taken = self.repository.taken();
        let announce = |descriptor: &weir_protocol::descriptor::Descriptor| {
            if *taken {
                self.shared.events.append(EventKind::Descriptor(descriptor.bytes().clone()));
            }
        };
        match change {
            Change::Pinned(since) => service.pinned(since),
            Change::Unpinned => service.unpinned(),
            Change::Current(descriptor) => service.show(descriptor, announce),
            Change::Revised(descriptor) => {
                self.shared.metrics.revisions.inc();
                tracing::info!(service = %service.name, descriptor_revision = descriptor.revision(), "revised");
                service.show(descriptor, announce);
            }
            Change::Published(descriptor) => {
                self.shared.metrics.publications.inc();
                let publication = descriptor.publication();
                tracing::info!(
                    service = %service.name,
                    generation = publication.generation,
                    commit = publication.commit.as_ref().map(tracing::field::display),
                    revision_id = %publication.revision_id,
                    digest = %publication.digest,
                    size = publication.size,
                    omitted = publication.omitted.len(),
                    "published"
                );
                service.show(descriptor, announce);
                if *taken {
                    self.shared.delta_queue.add(service);
                }
            }
        }
    }
}
