//! The permit of a poll: to list refs, and in its place one to fetch once something moved.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::limiter::{HostLimiter, Kind, Permit};

/// What a poll holds; nothing once it is overdue. Others get it when this is dropped, also if a thread of the poll does not
/// come back.
pub(super) struct PollPermit(Arc<Mutex<Option<Permit>>>);

impl PollPermit {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Arc::new(Mutex::new(Some(permit))))
    }

    /// Goes on with another one.
    pub(super) fn replace(&self, permit: Permit) {
        *held(&self.0) = Some(permit);
    }

    /// Gives it back, while the poll may go on.
    pub(super) fn give_back(&self) {
        *held(&self.0) = None;
    }

    /// Whether what moved may be fetched, for the thread that polls to ask then. `whole`: whether it is the whole
    /// repository, which may turn out as late.
    pub(super) fn may_fetch(
        &self,
        limiter: HostLimiter,
        whole: impl Fn() -> bool + Send + 'static,
    ) -> impl Fn() -> bool + Send + 'static {
        let permit = Arc::downgrade(&self.0);
        move || {
            let Some(permit) = permit.upgrade() else { return false };
            let mut held = held(&permit);
            let lists = held.as_ref().is_some_and(|permit| permit.kind == Kind::Listing);
            if lists && let Some(permit) = limiter.try_acquire(Kind::of_fetch(whole())) {
                *held = Some(permit);
            }
            held.as_ref().is_some_and(|permit| permit.kind != Kind::Listing)
        }
    }
}

fn held(permit: &Mutex<Option<Permit>>) -> MutexGuard<'_, Option<Permit>> {
    permit.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::limiter::tests::limiter;
    use super::*;

    #[test]
    fn who_fetches_lists_no_more_and_a_thread_that_hangs_holds_nothing() {
        let host = limiter(1, 1).at_host(&"https://git.example/shop.git".into());
        let begin = || PollPermit::new(host.try_acquire(Kind::Listing).unwrap());
        let is_free = |kind| host.try_acquire(kind).is_some();

        let first = begin();
        let of_a_thread = first.may_fetch(host.clone(), || false);
        assert!(of_a_thread() && of_a_thread());
        assert!(is_free(Kind::Listing) && !is_free(Kind::Fetch));

        let second = begin();
        let waits = second.may_fetch(host.clone(), || false);
        assert!(!waits() && !is_free(Kind::Listing), "there is none to fetch, so it keeps what it has");
        first.give_back();
        assert!(!of_a_thread(), "it is overdue");
        assert!(waits());
        drop(second);
        assert!(!waits() && is_free(Kind::Listing) && is_free(Kind::Fetch));
    }
}
