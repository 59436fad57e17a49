//! What a poll holds while it has its turn: a place to list refs, and instead of that a place to fetch once something moved.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fetch_places::FetchPlace;
use super::places::{AtHost, ListingPlace, Places};

/// The turn of a poll. It ends when this is dropped, also if a thread of the poll does not come back.
pub(super) struct Turn(Arc<Inner>);

struct Inner {
    places: Arc<Places>,
    at_host: AtHost,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    listing: Option<ListingPlace>,
    fetch: Option<FetchPlace>,
}

impl Turn {
    /// A turn that begins with a place to list refs.
    pub(super) fn begin(places: Arc<Places>, at_host: AtHost, place: Option<ListingPlace>) -> Self {
        let held = Mutex::new(Held { listing: place, fetch: None });
        Self(Arc::new(Inner { places, at_host, held }))
    }

    /// Goes on with a place to fetch.
    pub(super) fn go_on(&self, place: FetchPlace) {
        *self.0.held() = Held { listing: None, fetch: Some(place) };
    }

    /// Whether what moved may be fetched, for the thread that polls to ask then. `large`: whether it is the whole
    /// repository, which may turn out as late.
    pub(super) fn may_fetch(&self, large: impl Fn() -> bool + Send + 'static) -> impl Fn() -> bool + Send + 'static {
        let turn = Arc::downgrade(&self.0);
        move || turn.upgrade().is_some_and(|turn| turn.may_fetch(large()))
    }

    /// Gives back what it holds, while its poll may go on.
    pub(super) fn give_back(&self) {
        *self.0.held() = Held::default();
    }
}

impl Inner {
    /// The place to list goes to others when there is one to fetch.
    fn may_fetch(&self, large: bool) -> bool {
        let mut held = self.held();
        if held.fetch.is_none()
            && held.listing.is_some()
            && let Ok(place) = self.places.try_to_fetch(&self.at_host, large)
        {
            *held = Held { listing: None, fetch: Some(place) };
        }
        held.fetch.is_some()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
