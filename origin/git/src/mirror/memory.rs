//! The memory budget of all fetches, for receiving, indexing and checking packs.
//!
//! A fetch reserves its maximum after the header of its pack. One host may reserve as much as the largest fetch needs,
//! all together twice that, so a slow fetch delays only fetches from its own host.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{MirrorError, limits};

/// The interval at which a waiting fetch checks for an interrupt.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The memory budget of the fetches of an origin.
#[derive(Debug)]
pub struct FetchMemory {
    per_host: u64,
    /// Reserved bytes by host.
    reserved: Mutex<HashMap<String, u64>>,
    freed: Condvar,
}

/// The reservation of one fetch, released on drop.
pub(super) struct MemoryReservation<'a> {
    memory: &'a FetchMemory,
    host: String,
    bytes: u64,
}

impl FetchMemory {
    /// A budget for fetches with at most this many objects, and this many bytes per object.
    pub fn new(max_object: u64, max_objects: usize) -> Self {
        let per_host = limits::address_space(0, max_objects as u64, max_object);
        Self { per_host, reserved: Mutex::default(), freed: Condvar::new() }
    }

    /// The budget in bytes.
    pub fn limit(&self) -> u64 {
        self.per_host.saturating_mul(2)
    }

    /// The reserved bytes.
    pub fn in_use(&self) -> u64 {
        self.reserved().values().sum()
    }

    /// Reserves bytes, up to the limit per host. While it waits it calls `on_wait` regularly, which may give up.
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
    use weir_upstream::UpstreamError;

    use super::*;

    #[test]
    fn a_host_gets_the_memory_of_one_fetch_and_all_get_twice_that() {
        let memory = FetchMemory::new(1 << 20, 1000);
        let most = memory.per_host;
        let reserve = |host, bytes| memory.reserve(host, bytes, || Err(UpstreamError::Interrupted.into()));
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
