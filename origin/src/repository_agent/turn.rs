//! What a poll holds while it has its turn: a place to list refs, and instead of that a place to fetch once something moved.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fetch_places::FetchPlace;
use super::places::{AtHost, ListingPlace, Places};

/// The turn of a poll. Clones are the same one.
#[derive(Clone)]
pub(super) struct Turn {
    places: Arc<Places>,
    at_host: AtHost,
    /// What it would fetch is the whole repository.
    large: bool,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    listing: Option<ListingPlace>,
    fetch: Option<FetchPlace>,
}

impl Turn {
    /// A turn that begins with a place to list refs.
    pub(super) fn begin(places: Arc<Places>, at_host: AtHost, large: bool, place: Option<ListingPlace>) -> Self {
        Self { places, at_host, large, held: Arc::new(Mutex::new(Held { listing: place, fetch: None })) }
    }

    /// Goes on with a place to fetch.
    pub(super) fn go_on(&self, place: FetchPlace) {
        *self.held() = Held { listing: None, fetch: Some(place) };
    }

    /// Something moved: whether it may be fetched now. The place to list goes to others then.
    pub(super) fn may_fetch(&self) -> bool {
        let mut held = self.held();
        if held.fetch.is_none()
            && held.listing.is_some()
            && let Ok(place) = self.places.try_to_fetch(&self.at_host, self.large)
        {
            *held = Held { listing: None, fetch: Some(place) };
        }
        held.fetch.is_some()
    }

    /// Gives back what it holds, while its poll may go on.
    pub(super) fn give_back(&self) {
        *self.held() = Held::default();
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
