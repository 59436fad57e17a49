//! The permit of a poll: first one to list refs, then one to fetch if refs have changed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::limiter::{HostLimiter, Kind, Permit};

/// The permit of a running poll; none once the poll is overdue. Dropping this releases the permit, even if the poll's thread
/// never ends.
pub(super) struct PollPermit(Arc<Mutex<Option<Permit>>>);

impl PollPermit {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Arc::new(Mutex::new(Some(permit))))
    }

    /// Continues with another permit.
    pub(super) fn replace(&self, permit: Permit) {
        *held(&self.0) = Some(permit);
    }

    /// Releases the permit while the poll may still run.
    pub(super) fn release(&self) {
        *held(&self.0) = None;
    }

    /// Returns a function for the poll's thread that tries to replace the permit by one to fetch, and returns whether the poll
    /// has one. `is_clone` tells whether the fetch is a clone, which may become known that late.
    pub(super) fn may_fetch(
        &self,
        limiter: HostLimiter,
        is_clone: impl Fn() -> bool + Send + 'static,
    ) -> impl Fn() -> bool + Send + 'static {
        let permit = Arc::downgrade(&self.0);
        move || {
            let Some(permit) = permit.upgrade() else { return false };
            let mut held = held(&permit);
            let may_list = held.as_ref().is_some_and(|permit| permit.kind == Kind::Listing);
            if may_list && let Some(permit) = limiter.try_acquire(Kind::of_fetch(is_clone())) {
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
    fn a_fetch_releases_the_permit_to_list_and_a_hanging_thread_holds_none() {
        let host = limiter(1, 1).for_upstream(&"https://git.example/shop.git".into());
        let start = || PollPermit::new(host.try_acquire(Kind::Listing).unwrap());
        let is_free = |kind| host.try_acquire(kind).is_some();

        let first = start();
        let first_may_fetch = first.may_fetch(host.clone(), || false);
        assert!(first_may_fetch() && first_may_fetch());
        assert!(is_free(Kind::Listing) && !is_free(Kind::Fetch));

        let second = start();
        let second_may_fetch = second.may_fetch(host.clone(), || false);
        assert!(
            !second_may_fetch() && !is_free(Kind::Listing),
            "no permit to fetch is free, so it keeps its permit to list"
        );
        first.release();
        assert!(!first_may_fetch(), "the first poll is overdue");
        assert!(second_may_fetch());
        drop(second);
        assert!(!second_may_fetch() && is_free(Kind::Listing) && is_free(Kind::Fetch));
    }
}
