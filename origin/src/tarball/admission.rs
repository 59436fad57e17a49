//! How much may be in memory at once while a tarball is made.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bounds the fragments between the walk and the writer, in number and in bytes.
///
/// A fragment that is larger than all the bytes allowed waits until it is alone.
#[derive(Debug)]
pub(super) struct Admission {
    max_fragments: usize,
    max_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    fragments: usize,
    bytes: u64,
    closed: bool,
}

impl Admission {
    pub(super) fn new(max_fragments: usize, max_bytes: u64) -> Self {
        Self { max_fragments, max_bytes, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until a fragment of so many bytes may come in; `false` when nobody wants it any more.
    pub(super) fn enter(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        while !state.closed && !self.has_room(&state, bytes) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.fragments += 1;
        state.bytes += bytes;
        !state.closed
    }

    /// A fragment of so many bytes is done with.
    pub(super) fn leave(&self, bytes: u64) {
        let mut state = self.lock();
        state.fragments -= 1;
        state.bytes -= bytes;
        self.changed.notify_all();
    }

    /// Nothing more is wanted: who waits, and who comes later, is sent away.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn has_room(&self, state: &State, bytes: u64) -> bool {
        state.fragments == 0 || (state.fragments < self.max_fragments && state.bytes + bytes <= self.max_bytes)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is three numbers that are never half changed, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_and_bytes_are_bounded_and_one_is_always_let_in() {
        let admission = Admission::new(3, 100);
        let room = |bytes| admission.has_room(&admission.lock(), bytes);
        assert!(room(1000), "the first may be of any size");
        assert!(admission.enter(60));
        assert!(room(40));
        assert!(!room(41));
        assert!(admission.enter(20) && admission.enter(20));
        assert!(!room(0), "three are in");
        admission.leave(60);
        assert!(room(60));
        admission.close();
        assert!(!admission.enter(1));
    }
}
