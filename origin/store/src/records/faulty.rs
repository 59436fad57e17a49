//! An engine with unknown write outcomes that tests switch on.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::engine::Engine;
use super::local::LocalEngine;
use super::{Expect, Listed, PutOutcome, Record, RecordError, RecordKey, Version};

/// The fate of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// Not committed; the caller sees an unknown outcome.
    Lost,
    /// Committed; the caller sees an unknown outcome.
    Unconfirmed,
    /// Not committed; the caller sees a conflict, although the record has not changed.
    Refused,
}

/// An engine whose writes fail as a test says.
#[derive(Debug)]
pub struct FaultyEngine {
    inner: Engine,
    faults: Mutex<VecDeque<WriteFault>>,
    /// Whose writes wait.
    stalled: watch::Sender<Option<RecordKey>>,
}

impl FaultyEngine {
    /// A local engine on a folder.
    pub fn local(folder: &Path) -> Arc<Self> {
        Self::over(Engine::Local(LocalEngine::open(folder).expect("the folder can be used")))
    }

    pub(crate) fn over(inner: Engine) -> Arc<Self> {
        Arc::new(Self { inner, faults: Mutex::default(), stalled: watch::Sender::default() })
    }

    /// Sets the faults of the next writes, in order; later writes succeed.
    pub fn fail_writes(&self, faults: impl IntoIterator<Item = WriteFault>) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// Lets all writes of one record wait, until this is called with another one or none.
    pub fn stall(&self, key: Option<RecordKey>) {
        self.stalled.send_replace(key);
    }

    // The inner engine is of the type that holds this one: without boxes its futures would hold themselves.
    pub(crate) fn get<'a>(&'a self, key: &'a RecordKey) -> BoxFuture<'a, Result<Option<Record>, RecordError>> {
        self.inner.get(key).boxed()
    }

    pub(crate) fn put<'a>(&'a self, key: &'a RecordKey, bytes: Bytes, expect: Expect) -> BoxFuture<'a, PutOutcome> {
        let fault = self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        async move {
            // The sender lives as long as the engine.
            let _ = self.stalled.subscribe().wait_for(|stalled| stalled.as_ref() != Some(key)).await;
            let unknown = RecordError::Unavailable { key: key.to_string(), cause: "no answer".to_owned() };
            match fault {
                None => self.inner.put(key, bytes, expect).await,
                Some(WriteFault::Lost) => PutOutcome::Unknown(unknown),
                Some(WriteFault::Refused) => PutOutcome::Conflict,
                Some(WriteFault::Unconfirmed) => match self.inner.put(key, bytes, expect).await {
                    PutOutcome::Done(_) => PutOutcome::Unknown(unknown),
                    other => other,
                },
            }
        }
        .boxed()
    }

    pub(crate) fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<Listed>, RecordError>> {
        self.inner.list(prefix).boxed()
    }

    pub(crate) fn delete<'a>(
        &'a self,
        key: &'a RecordKey,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<(), RecordError>> {
        self.inner.delete(key, version).boxed()
    }
}
