//! Limits the memory of a build.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Limits the runs between the walk and the hasher, in bytes of tar.
///
/// A run that exceeds the whole budget waits until it is the only one.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    max_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    closed: bool,
}

impl MemoryBudget {
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self { max_bytes, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Waits until there is room for a run. Returns `false` after [`Self::close`].
    pub(crate) fn enter(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        while !state.closed && !self.has_room(&state, bytes) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes += bytes;
        !state.closed
    }

    /// Frees the bytes of a run.
    pub(crate) fn leave(&self, bytes: u64) {
        self.lock().bytes -= bytes;
        self.changed.notify_all();
    }

    /// Wakes all waiting callers and rejects later ones.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn has_room(&self, state: &State, bytes: u64) -> bool {
        state.bytes == 0 || state.bytes + bytes <= self.max_bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent at every point where a thread may panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded_and_one_run_is_always_let_in() {
        let budget = MemoryBudget::new(100);
        let room = |bytes| budget.has_room(&budget.lock(), bytes);
        assert!(room(1000), "the first may be of any size");
        assert!(budget.enter(60));
        assert!(room(40));
        assert!(!room(41));
        assert!(budget.enter(40));
        assert!(!room(1));
        budget.leave(60);
        assert!(room(60));
        budget.close();
        assert!(!budget.enter(1));
    }
}
