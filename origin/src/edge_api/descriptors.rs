//! The files that blobs hold open while they are sent: up to nine each, for as long as the slowest edge takes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_shared::process::open_files;

use crate::blob_store::MAX_DESCRIPTORS;
use crate::bounds::Bounds;

/// The most, where the process may have any number of files open.
const MOST: usize = 65_536;

/// How long a request waits for others to be done with theirs.
const WAIT: Duration = Duration::from_secs(10);

/// What all blobs may hold together, so that databases and new connections find some. Cheap to clone.
#[derive(Clone)]
pub(super) struct Descriptors(Arc<Semaphore>);

/// What one blob may hold.
pub(super) struct Held(OwnedSemaphorePermit);

impl Descriptors {
    /// As many as this process may spare, shown among its bounds.
    pub(super) fn new(bounds: &Bounds) -> Self {
        let spared = open_files::for_files(open_files::raise_limit(), MOST);
        Self(bounds.semaphore("blob_descriptors", spared.max(MAX_DESCRIPTORS)))
    }

    /// Enough for any blob. `None`: those that are sent hold too many.
    pub(super) async fn for_a_blob(&self) -> Option<Held> {
        let enough = self.0.clone().acquire_many_owned(MAX_DESCRIPTORS as u32);
        tokio::time::timeout(WAIT, enough).await.ok()?.ok().map(Held)
    }
}

impl Held {
    /// The blob holds this many. The rest is for others.
    pub(super) fn keep(&mut self, descriptors: usize) {
        drop(self.0.split(self.0.num_permits().saturating_sub(descriptors)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_blob_holds_what_it_has_open_and_the_next_one_waits_until_there_is_enough() {
        let descriptors = Descriptors(Arc::new(Semaphore::new(MAX_DESCRIPTORS + 2)));
        let mut one = descriptors.for_a_blob().await.unwrap();
        assert!(descriptors.for_a_blob().await.is_none());
        one.keep(2);
        let other = descriptors.for_a_blob().await.unwrap();
        assert!(descriptors.for_a_blob().await.is_none());
        drop(other);
        assert!(descriptors.for_a_blob().await.is_some());
        drop(one);
        assert_eq!(descriptors.0.available_permits(), MAX_DESCRIPTORS + 2);
    }
}
