//! Fetches the LFS objects of tarball contents, once there is disk space for them.

use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytesize::ByteSize;
use weir_git::bundles::{StoredLfsRequest, take_stored_lfs};
use weir_git::lfs::LfsFile;
use weir_git::mirror::{LfsError, LfsFetch};

use super::GitSource;
use crate::{LfsFetchRequest, LfsFetchResult, RetryPolicy, ServiceFailure};

/// Reserved disk space for objects that are being fetched, in bytes.
struct DiskReservation<'a> {
    total: &'a Mutex<u64>,
    bytes: Cell<u64>,
}

impl DiskReservation<'_> {
    /// Releases the space of an object that is on disk now.
    fn release(&self, bytes: u64) {
        let bytes = bytes.min(self.bytes.get());
        self.bytes.set(self.bytes.get() - bytes);
        *locked(self.total) -= bytes;
    }
}

impl Drop for DiskReservation<'_> {
    fn drop(&mut self) {
        self.release(self.bytes.get());
    }
}

impl GitSource {
    /// Fetches objects, if there is space for them.
    pub fn fetch_lfs(
        &self,
        request: &LfsFetchRequest<'_>,
        stop: &AtomicBool,
    ) -> Result<LfsFetchResult, ServiceFailure> {
        let reservation = self.reserve(request, stop)?;
        let fetched = RefCell::new(LfsFetchResult::default());
        let LfsFetchRequest { files, stored, read, .. } = *request;
        let max_object = self.shared.upstreams.max_lfs_object.as_u64();
        let in_store = StoredLfsRequest { repository: &self.repository, files, stored, read, max_object };
        fetched.borrow_mut().fetched += take_stored_lfs(&self.mirror.lfs_objects(), &in_store, stop);
        let on_result = |file: &LfsFile, result: Result<(), &LfsError>| match result {
            Ok(()) => {
                self.shared.metrics.lfs_objects.inc();
                self.shared.metrics.lfs_bytes.inc_by(file.pointer.size);
                reservation.release(file.pointer.size);
                fetched.borrow_mut().fetched += 1;
            }
            Err(error) if error.is_interrupted() => {}
            Err(error) => fetched.borrow_mut().fail(error.to_string()),
        };
        let fetch = LfsFetch {
            upstream: &self.upstream(request.config),
            objects: &self.mirror.lfs_objects(),
            budget: request.budget,
            is_needed: request.is_needed,
            on_result: &on_result,
            interrupt: stop,
        };
        let result = fetch.run(request.files);
        let mut fetched = fetched.into_inner();
        if let Err(error) = result {
            fetched.interrupted = error.is_interrupted();
            fetched.retry_after = error.retry_after();
            if !fetched.interrupted {
                fetched.fail(error.to_string());
            }
        }
        Ok(fetched)
    }

    /// Reserves space for objects, on the disk and within `max_mirror`. Collects garbage first if it is needed, unless
    /// the repository is being cloned again.
    fn reserve(&self, request: &LfsFetchRequest<'_>, stop: &AtomicBool) -> Result<DiskReservation<'_>, ServiceFailure> {
        let LfsFetchRequest { files, services, published, mirrored, .. } = *request;
        // Held throughout, so that one thread at a time collects garbage.
        let mut reserved = locked(&self.reserved_lfs_bytes);
        let failed =
            |reason: String| ServiceFailure { retry: RetryPolicy::BackOff, ..ServiceFailure::transient("lfs", reason) };
        let bytes = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.pointer.size));
        let max_mirror = self.shared.upstreams.max_mirror.as_u64();
        let mut usage = self.mirror.lfs_objects().usage().map_err(|error| failed(error.to_string()))?;
        let has_room = |usage: u64, reserved: u64| {
            let others = usage.saturating_add(reserved);
            if others.saturating_add(bytes) > max_mirror {
                let (others, limit) = (ByteSize(others), ByteSize(max_mirror));
                return Err(format!("with the {others} on disk they would exceed `[upstreams] max_mirror` = {limit}"));
            }
            self.require_room(reserved.saturating_add(bytes))
        };
        let mut note = String::new();
        if has_room(usage.bytes, *reserved).is_err() {
            if mirrored {
                match self.collect_lfs_garbage(services, published, Duration::ZERO, stop) {
                    Ok(remaining) => usage = remaining,
                    Err(failure) => note = format!("; no object was removed, because {}", failure.reason),
                }
                if note.is_empty() {
                    "; current and retained versions need the others: raise the limit, or retain fewer versions"
                        .clone_into(&mut note);
                }
            } else {
                "; no object is removed before the repository is cloned again".clone_into(&mut note);
            }
        }
        match has_room(usage.bytes, *reserved) {
            Ok(()) => {
                *reserved += bytes;
                Ok(DiskReservation { total: &self.reserved_lfs_bytes, bytes: Cell::new(bytes) })
            }
            Err(reason) => Err(failed(format!(
                "{} LFS objects with {} have to be fetched, but {reason}{note}",
                files.len(),
                ByteSize(bytes)
            ))),
        }
    }
}

fn locked(reserved: &Mutex<u64>) -> MutexGuard<'_, u64> {
    reserved.lock().unwrap_or_else(PoisonError::into_inner)
}
