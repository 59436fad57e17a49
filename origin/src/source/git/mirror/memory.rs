//! The memory that all fetches may hold together for what they bring: while it comes, and is indexed and checked.
//!
//! Each says at the head of its pack how much that may be. One host has as much as the largest fetch takes, and all have twice
//! that: what takes long to come or to index keeps nothing back but what else its own host sends.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{MirrorError, limits};

/// How soon a request to stop is seen by one that on_wait.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What the fetches of one origin hold.
#[derive(Debug)]
pub struct FetchMemory {
    per_host: u64,
    /// In bytes, by host.
    reserved: Mutex<HashMap<String, u64>>,
    freed: Condvar,
}

/// What one fetch holds; others get it when this is dropped.
pub(super) struct MemoryReservation<'a> {
    memory: &'a FetchMemory,
    host: String,
    bytes: u64,
}

impl FetchMemory {
    /// For fetches of at most so many objects, of at most so many bytes each.
    pub fn new(max_object: u64, max_objects: usize) -> Self {
        let per_host = limits::address_space(0, max_objects as u64, max_object);
        Self { per_host, reserved: Mutex::default(), freed: Condvar::new() }
    }

    /// The most bytes of all together.
    pub fn limit(&self) -> u64 {
        self.per_host.saturating_mul(2)
    }

    /// The bytes that are reserved now.
    pub fn in_use(&self) -> u64 {
        self.reserved().values().sum()
    }

    /// Takes so many bytes, or all that one host may have. `on_wait` is called now and then until they are there, and may give
    /// up.
    pub(super) fn reserve(
        &self,
        host: &str,
        bytes: u64,
        mut on_wait: impl FnMut() -> Result<(), MirrorError>,
    ) -> Result<MemoryReservation<'_>, MirrorError> {
        let bytes = bytes.min(self.per_host);
        let mut reserved = self.reserved();
        while reserved.get(host).is_some_and(|host_bytes| host_bytes.saturating_add(bytes) > self.per_host)
            || reserved.values().sum::<u64>().saturating_add(bytes) > self.limit()
        {
            on_wait()?;
            reserved =
                self.freed.wait_timeout(reserved, INTERRUPT_POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        *reserved.entry(host.to_owned()).or_default() += bytes;
        Ok(MemoryReservation { memory: self, host: host.to_owned(), bytes })
    }

    fn reserved(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        let mut reserved = self.memory.reserved();
        reserved.entry(self.host.clone()).and_modify(|bytes| *bytes -= self.bytes);
        reserved.retain(|_, bytes| *bytes > 0);
        self.memory.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_what_one_fetch_takes_and_all_have_twice_that() {
        let memory = FetchMemory::new(1 << 20, 1000);
        let most = memory.per_host;
        let reserve = |host, bytes| memory.reserve(host, bytes, || Err(MirrorError::Interrupted));
        let first = reserve("a", u64::MAX).ok().unwrap();
        assert!(reserve("a", 1).is_err());
        let second = reserve("b", most - 1).ok().unwrap();
        assert!(reserve("b", 2).is_err() && reserve("c", 2).is_err());
        let third = reserve("c", 1).ok().unwrap();
        assert_eq!((memory.in_use(), memory.limit()), (2 * most, 2 * most));
        drop(first);
        assert!(reserve("a", most).is_ok());
        drop((second, third));
        assert_eq!(memory.in_use(), 0);
    }
}
