//! The LFS objects of contents: fetched once there is room for them.

use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytesize::ByteSize;

use super::GitSource;
use super::lfs::LfsFile;
use super::mirror::{LfsError, LfsFetch};
use crate::disk_watch;
use crate::source::{LfsFetchRequest, LfsFetchResult, RetryPolicy, ServiceFailure};

/// Room for objects that are not here yet.
struct Reserved<'a> {
    of_all: &'a Mutex<u64>,
    bytes: Cell<u64>,
}

impl Reserved<'_> {
    /// An object of so many bytes is here.
    fn used(&self, bytes: u64) {
        let bytes = bytes.min(self.bytes.get());
        self.bytes.set(self.bytes.get() - bytes);
        *locked(self.of_all) -= bytes;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.used(self.bytes.get());
    }
}

impl GitSource {
    /// Fetches objects, if there is room for them.
    pub(super) fn fetch_files(
        &self,
        request: &LfsFetchRequest<'_>,
        stop: &AtomicBool,
    ) -> Result<LfsFetchResult, ServiceFailure> {
        let room = self.reserve(request, stop)?;
        let fetched = RefCell::new(LfsFetchResult::default());
        let ended = |file: &LfsFile, result: Result<(), &LfsError>| match result {
            Ok(()) => {
                self.shared.metrics.lfs_objects.inc();
                self.shared.metrics.lfs_bytes.inc_by(file.pointer.size);
                room.used(file.pointer.size);
                fetched.borrow_mut().fetched += 1;
            }
            Err(error) if error.is_interrupted() => {}
            Err(error) => fetched.borrow_mut().fail(error.to_string()),
        };
        let fetch = LfsFetch {
            upstream: &self.upstream(request.config),
            objects: &self.mirror.lfs_objects(),
            budget: request.budget,
            wanted: request.is_needed,
            ended: &ended,
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

    /// Sees to it that there is room for objects: on the disk, and among the objects of the mirror, from which those go first
    /// that nothing needs, unless the repository is being cloned anew.
    fn reserve(&self, request: &LfsFetchRequest<'_>, stop: &AtomicBool) -> Result<Reserved<'_>, ServiceFailure> {
        let LfsFetchRequest { files, services, published, mirrored, .. } = *request;
        // One at a time looks for room, and makes some.
        let mut reserved = locked(&self.reserved);
        let failed =
            |reason: String| ServiceFailure { retry: RetryPolicy::BackOff, ..ServiceFailure::transient("lfs", reason) };
        let bytes = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.pointer.size));
        let max_mirror = self.shared.upstreams.max_mirror.as_u64();
        let mut held = self.mirror.lfs_objects().held().map_err(|error| failed(error.to_string()))?;
        let has_room = |held: u64, reserved: u64| {
            let others = held.saturating_add(reserved);
            if others.saturating_add(bytes) > max_mirror {
                let (others, limit) = (ByteSize(others), ByteSize(max_mirror));
                return Err(format!(
                    "with the {others} that are here they would be more than `[upstreams] max_mirror` = {limit} allows"
                ));
            }
            let needed = self.shared.min_free.saturating_add(reserved).saturating_add(bytes);
            disk_watch::require_room(&self.shared.data_dir, needed)
        };
        let mut why = String::new();
        if has_room(held.bytes, *reserved).is_err() {
            if mirrored {
                match self.sweep(services, published, Duration::ZERO, stop) {
                    Ok(stays) => held = stays,
                    Err(failure) => why = format!("; none of them goes, because {}", failure.reason),
                }
                if why.is_empty() {
                    "; current and retained versions need them: raise it, or retain less".clone_into(&mut why);
                }
            } else {
                "; none of them goes before the repository is cloned again".clone_into(&mut why);
            }
        }
        match has_room(held.bytes, *reserved) {
            Ok(()) => {
                *reserved += bytes;
                Ok(Reserved { of_all: &self.reserved, bytes: Cell::new(bytes) })
            }
            Err(reason) => Err(failed(format!(
                "{} LFS objects of {} are to be fetched, but {reason}{why}",
                files.len(),
                ByteSize(bytes)
            ))),
        }
    }
}

fn locked(reserved: &Mutex<u64>) -> MutexGuard<'_, u64> {
    reserved.lock().unwrap_or_else(PoisonError::into_inner)
}
