//! The one task that writes a repository's record. It applies all queued changes to one draft, stores its objects,
//! replaces the record, and then makes the changes visible.
//!
//! An unknown outcome is resolved before anything else is written: the same bytes are put again, or are found to be
//! stored already.
//!
//! In a cluster it writes only while this origin owns the repository (`ownership.rs`). Its
//! [keeper](super::keeper) takes over in memory what is stored.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use weir_model::failpoint;
use weir_store::{Expect, MAX_RECORD_BYTES, PutOutcome, RecordKey, Version};

use super::keeper::{Keeper, Prepared};
use super::pending_change::{Applied, PendingChange};
use super::protection::Protection;
use super::repository::{Repository, Shared};
use super::state_write::StateWriter;
use super::write_pace::WritePace;
use crate::decide::draft::{Draft, VisibleChange};
use crate::error::{PublishError, TakeError};
use crate::stored::known::SuspendedUntil;
use crate::stored::load::{ReadError, read_pages};
use crate::stored::page;

/// The most queued changes of one repository; further callers wait.
pub(crate) const MAX_WAITING: usize = 256;

/// An unknown outcome, and an unreadable repository, are retried after this time, or with the next change before.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The waits before a refused write of a record that has not changed is repeated: a store may refuse one of two writes
/// at the same time, although it carries out neither.
const CONFLICT_WAITS: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(400), Duration::from_secs(1)];

pub(crate) enum Request {
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

pub(crate) struct Writer {
    keeper: Keeper,
    key: RecordKey,
    /// A write with an unknown outcome.
    outstanding: Option<Prepared>,
    pace: WritePace,
    retry_at: Instant,
}

enum NotWritten {
    Unknown(String),
    /// Another writer replaced the record.
    Superseded,
    /// This origin does not own the repository.
    NotOwner,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, repository: Arc<Repository>) -> Self {
        let (key, now) = (RecordKey::repository(&repository.name), Instant::now());
        let pace = if shared.records.are_local() { WritePace::Unlimited } else { WritePace::of_record(now) };
        let keeper = Keeper { shared, repository };
        Self { keeper, key, outstanding: None, pace, retry_at: now + RETRY_INTERVAL }
    }

    /// Runs until all senders are gone. The step is boxed: the waiting task of each repository needs no room for it.
    pub(crate) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        loop {
            let request = tokio::select! {
                request = requests.recv() => request,
                () = sleep_until(self.retry_at), if self.outstanding.is_some() || self.keeper.repository.is_unread() => {
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
            if let Some(allowed) = self.pace.next_write().filter(|_| self.keeper.repository.is_taken()) {
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
                    *self.keeper.repository.taken() = false;
                }
            }
            Request::Release(done) => drop(done.send(self.release())),
            Request::Refresh(done) => drop(done.send(self.refresh().await)),
        }
    }

    async fn commit(&mut self, changes: Vec<PendingChange>) {
        let repository = self.keeper.repository.clone();
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
        let pages = match read_pages(&self.keeper.shared.objects, &repository.name, &record.pages, positions).await {
            Ok(pages) => pages,
            Err(error) => {
                if let ReadError::Damaged(reason) = &error {
                    self.keeper.suspend(reason);
                }
                let error = PublishError::from(error);
                return changes.into_iter().for_each(|change| change.refuse(error.clone()));
            }
        };
        let rules = self.keeper.shared.rules.clone();
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
            visible.into_iter().for_each(|visible| self.keeper.show(visible));
        }
        let mut known = self.keeper.repository.change_known();
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
        let before = self.keeper.repository.known().record.clone();
        let dropped_versions = draft.dropped_versions;
        let (mut record, pages, rows, lines) = draft.into_parts();
        let protection = Protection::new(self.keeper.repository.protected.clone());
        let writer = StateWriter {
            objects: &self.keeper.shared.objects,
            repository: &self.keeper.repository.name,
            metrics: &self.keeper.shared.metrics,
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
                self.keeper.adopt(prepared, version);
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
                Err(self.keeper.not_owner())
            }
            Err(NotWritten::Superseded) => {
                if let Some(superseded) = &self.keeper.shared.superseded {
                    tracing::warn!(repository = %self.keeper.repository.name, "another origin has written the record of the repository: this origin no longer publishes there");
                    *self.keeper.repository.taken() = false;
                    // The receiver is gone only at a stop.
                    let _ = superseded.send(self.keeper.repository.name.clone());
                    return Err(self.keeper.not_owner());
                }
                self.keeper.suspend("its record was replaced by another writer while this origin ran");
                self.keeper.refuse_suspended()
            }
        }
    }

    async fn put(&self, bytes: &Bytes) -> Result<Version, NotWritten> {
        let before = self.keeper.repository.known().version.clone();
        let mut waits = CONFLICT_WAITS.into_iter();
        loop {
            if !self.keeper.may_write() {
                return Err(NotWritten::NotOwner);
            }
            let expect = before.clone().map_or(Expect::Absent, Expect::Version);
            let (word, cause) = match self.keeper.shared.records.put(&self.key, bytes.clone(), expect).await {
                PutOutcome::Done(version) => {
                    self.keeper.shared.metrics.record_writes.with_label_values(&["done"]).inc();
                    return Ok(version);
                }
                PutOutcome::Conflict => ("conflict", None),
                PutOutcome::Unknown(cause) => ("unknown", Some(cause.to_string())),
            };
            self.keeper.shared.metrics.record_writes.with_label_values(&[word]).inc();
            // Bytes that can be read are durable.
            match (self.keeper.shared.records.get(&self.key).await, cause) {
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

    /// Resolves an unknown outcome, and reloads an unread state, before the next write.
    async fn resolve_outstanding(&mut self) -> Result<(), PublishError> {
        if !self.keeper.may_write() {
            self.retry_at = Instant::now() + RETRY_INTERVAL;
            if self.keeper.repository.is_unread() {
                self.refresh().await?;
            }
            return Err(self.keeper.not_owner());
        }
        if let Some(outstanding) = self.outstanding.take() {
            Box::pin(self.put_or_retry(outstanding, true)).await?;
            tracing::info!(repository = %self.keeper.repository.name, "a record whose write had an unknown outcome is written");
        }
        match self.keeper.repository.suspension() {
            None => Ok(()),
            Some(suspension) if suspension.until != SuspendedUntil::Read => self.keeper.refuse_suspended(),
            Some(_) => {
                let loaded = self.keeper.load().await;
                self.retry_at = Instant::now() + RETRY_INTERVAL;
                self.keeper.replace_known(loaded);
                self.keeper.refuse_suspended()
            }
        }
    }

    /// Makes the readable state the current one.
    async fn confirm(&mut self, done: oneshot::Sender<Result<bool, PublishError>>) {
        let repository = self.keeper.repository.clone();
        let _committing = repository.committing.lock().await;
        let confirmed = Box::pin(self.accept_stored_state()).await;
        let _ = done.send(confirmed);
    }

    async fn accept_stored_state(&mut self) -> Result<bool, PublishError> {
        let Some(confirmed) = self.keeper.repository.suspension() else { return Ok(false) };
        if !self.keeper.may_write() {
            return Err(self.keeper.not_owner());
        }
        if confirmed.until == SuspendedUntil::Restarted {
            return self.keeper.refuse_suspended().map(|()| false);
        }
        let mut loaded = self.keeper.load().await;
        match loaded.known.suspension.take() {
            Some(now) if now.until == SuspendedUntil::Read => return Err(PublishError::Object(now.reason)),
            Some(now) if now.reason != confirmed.reason => {
                self.keeper.suspend(&now.reason);
                return self.keeper.refuse_suspended().map(|()| false);
            }
            _ => {}
        }
        self.outstanding = None;
        let (record, replaced) = (loaded.known.record.clone(), std::mem::take(&mut loaded.replaced));
        self.keeper.replace_known(loaded);
        let rules = self.keeper.shared.rules.clone();
        let mut draft = Draft::new(&rules, record, replaced);
        draft.set_changed();
        let result = self.write(draft, &mut [], Vec::new()).await;
        if let Err(error) = result {
            self.keeper.suspend_for(confirmed);
            return Err(error);
        }
        tracing::warn!(repository = %self.keeper.repository.name, "an operator confirmed the state of the repository; publishing continues");
        Ok(true)
    }

    async fn take(&mut self, version: &Version) -> Result<(), TakeError> {
        // Whatever was outstanding belongs to a version before this one.
        self.outstanding = None;
        self.keeper.read().await?;
        if self.keeper.repository.known().version.as_ref() != Some(version) {
            return Err(TakeError::Superseded);
        }
        self.keeper.repository.protected.forget_unreferenced();
        // What was unreferenced here before has to be found again.
        self.keeper.repository.is_dirty.store(true, Ordering::Relaxed);
        // An owner in between may have been asked for services.
        self.keeper.repository.withdrawals.fetch_add(1, Ordering::SeqCst);
        *self.keeper.repository.taken() = true;
        Ok(())
    }

    fn release(&mut self) -> bool {
        *self.keeper.repository.taken() = false;
        self.outstanding.take().is_none()
    }

    async fn refresh(&mut self) -> Result<(), PublishError> {
        if self.keeper.may_write() {
            return Ok(());
        }
        if !self.keeper.repository.is_taken() {
            return self.keeper.read().await;
        }
        // The session has ended: what is in memory is right only if nobody else has written since.
        let stored = self.keeper.shared.records.get(&self.key).await?;
        let is_current = stored.map(|record| record.version) == self.keeper.repository.known().version;
        if is_current { Ok(()) } else { Err(self.keeper.not_owner()) }
    }
}
