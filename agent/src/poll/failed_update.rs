//! An update by frames that failed: whether it is tried again, and what had arrived.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_protocol::digest::TarballDigest;

use super::spool::Spool;
use crate::fetch::Missing;

/// The version to which an update by frames failed since the last one succeeded.
#[derive(Default)]
pub(super) struct FailedUpdate {
    failed: Mutex<Option<Failed>>,
    /// The release on disk was changed at the last update: it may be changed at the next one.
    was_modified: AtomicBool,
}

struct Failed {
    digest: TarballDigest,
    /// The tarball is to be fetched whole.
    is_final: bool,
    /// What had arrived, for the next edge.
    spool: Option<Spool>,
}

impl FailedUpdate {
    fn lock(&self) -> MutexGuard<'_, Option<Failed>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_final(&self, digest: TarballDigest) -> bool {
        self.lock().as_ref().is_some_and(|failed| failed.digest == digest && failed.is_final)
    }

    pub(super) fn clear(&self) {
        *self.lock() = None;
        self.was_modified.store(false, Ordering::Relaxed);
    }

    pub(super) fn found_modified(&self) {
        self.was_modified.store(true, Ordering::Relaxed);
    }

    pub(super) fn was_modified(&self) -> bool {
        self.was_modified.load(Ordering::Relaxed)
    }

    /// Records a failure; whether the tarball is to be fetched whole: what passes is tried once more, of whatever version.
    pub(super) fn add(&self, digest: TarballDigest, passes: bool, spool: Option<Spool>) -> bool {
        let mut failed = self.lock();
        let is_final = !passes || failed.is_some();
        *failed = Some(Failed { digest, is_final, spool: spool.filter(|_| !is_final) });
        is_final
    }

    /// Takes what has arrived of these frames.
    pub(super) fn take(&self, missing: &[Missing]) -> Option<Spool> {
        self.lock().as_mut()?.spool.take().filter(|spool| spool.missing == missing)
    }
}
