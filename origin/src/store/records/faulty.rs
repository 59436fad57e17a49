//! An engine with unknown write outcomes that tests switch on.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::local::LocalEngine;
use super::{Expect, PutOutcome, Record, RecordEngine, RecordError, RecordKey};

/// The fate of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFault {
    /// Not committed; the caller sees an unknown outcome.
    Lost,
    /// Committed; the caller sees an unknown outcome.
    Unconfirmed,
}

#[derive(Debug)]
pub(crate) struct FaultyEngine<E> {
    inner: Arc<E>,
    faults: Mutex<VecDeque<WriteFault>>,
}

impl FaultyEngine<LocalEngine> {
    /// A local engine on a folder.
    pub(crate) fn local(folder: &Path) -> Arc<Self> {
        Self::over(LocalEngine::open(folder).expect("the folder can be used"))
    }
}

impl<E: RecordEngine> FaultyEngine<E> {
    pub(crate) fn over(inner: E) -> Arc<Self> {
        Arc::new(Self { inner: Arc::new(inner), faults: Mutex::default() })
    }

    /// Sets the faults of the next writes, in order; later writes succeed.
    pub(crate) fn fail_writes(&self, faults: impl IntoIterator<Item = WriteFault>) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }
}

impl<E: RecordEngine> RecordEngine for FaultyEngine<E> {
    fn get(&self, key: RecordKey) -> BoxFuture<'static, Result<Option<Record>, RecordError>> {
        self.inner.get(key)
    }

    fn put(&self, key: RecordKey, bytes: Bytes, expect: Expect) -> BoxFuture<'static, PutOutcome> {
        let fault = self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let inner = self.inner.clone();
        async move {
            let unknown = RecordError::Unavailable { key: key.to_string(), cause: "no answer".to_owned() };
            match fault {
                None => inner.put(key, bytes, expect).await,
                Some(WriteFault::Lost) => PutOutcome::Unknown(unknown),
                Some(WriteFault::Unconfirmed) => match inner.put(key, bytes, expect).await {
                    PutOutcome::Done(_) => PutOutcome::Unknown(unknown),
                    other => other,
                },
            }
        }
        .boxed()
    }

    fn list(&self, prefix: String) -> BoxFuture<'static, Result<Vec<RecordKey>, RecordError>> {
        self.inner.list(prefix)
    }
}
