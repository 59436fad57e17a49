//! The memory that all fetches may hold together for what they bring: while it comes, and is indexed and checked.
//!
//! Each says at the head of its pack how much that may be. One host has as much as the largest fetch takes, and all have twice
//! that: what takes long to come or to index keeps nothing back but what else its own host sends.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{MirrorError, quarantine};

/// How soon a request to stop is seen by one that waits.
const GLANCE: Duration = Duration::from_millis(100);

/// What the fetches of one origin hold.
#[derive(Debug)]
pub struct FetchMemory {
    of_a_host: u64,
    /// In bytes, by host.
    held: Mutex<HashMap<String, u64>>,
    freed: Condvar,
}

/// What one fetch holds; others get it when this is dropped.
pub(super) struct Held<'a> {
    memory: &'a FetchMemory,
    host: String,
    bytes: u64,
}

impl FetchMemory {
    /// For fetches of at most so many objects, of at most so many bytes each.
    pub fn new(max_object: u64, max_objects: usize) -> Self {
        let of_a_host = quarantine::address_space(0, max_objects as u64, max_object);
        Self { of_a_host, held: Mutex::default(), freed: Condvar::new() }
    }

    /// The most bytes of all together.
    pub fn limit(&self) -> u64 {
        self.of_a_host.saturating_mul(2)
    }

    /// The bytes that are held now.
    pub fn in_use(&self) -> u64 {
        self.held().values().sum()
    }

    /// Takes so many bytes, or all that one host may have. `waits` is called now and then until they are there, and may give
    /// up.
    pub(super) fn take(
        &self,
        host: &str,
        bytes: u64,
        mut waits: impl FnMut() -> Result<(), MirrorError>,
    ) -> Result<Held<'_>, MirrorError> {
        let bytes = bytes.min(self.of_a_host);
        let mut held = self.held();
        while held.get(host).is_some_and(|of_host| of_host.saturating_add(bytes) > self.of_a_host)
            || held.values().sum::<u64>().saturating_add(bytes) > self.limit()
        {
            waits()?;
            held = self.freed.wait_timeout(held, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
        }
        *held.entry(host.to_owned()).or_default() += bytes;
        Ok(Held { memory: self, host: host.to_owned(), bytes })
    }

    fn held(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.memory.held();
        held.entry(self.host.clone()).and_modify(|bytes| *bytes -= self.bytes);
        held.retain(|_, bytes| *bytes > 0);
        self.memory.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_what_one_fetch_takes_and_all_have_twice_that() {
        let memory = FetchMemory::new(1 << 20, 1000);
        let most = memory.of_a_host;
        let take = |host, bytes| memory.take(host, bytes, || Err(MirrorError::Interrupted));
        let first = take("a", u64::MAX).ok().unwrap();
        assert!(take("a", 1).is_err());
        let second = take("b", most - 1).ok().unwrap();
        assert!(take("b", 2).is_err() && take("c", 2).is_err());
        let third = take("c", 1).ok().unwrap();
        assert_eq!((memory.in_use(), memory.limit()), (2 * most, 2 * most));
        drop(first);
        assert!(take("a", most).is_ok());
        drop((second, third));
        assert_eq!(memory.in_use(), 0);
    }
}
