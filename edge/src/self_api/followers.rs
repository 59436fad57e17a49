//! How much all event streams of this edge follow, and over what their agents spread what they fetch.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::rows::Following;

/// Over what agents that learn of something at one moment spread their requests, so that an edge gets no more than this many
/// in a second, also when all services change at once. Pure. A single agent of one service waits for nobody.
pub(super) fn spread(followed: usize, per_second: usize) -> Duration {
    Duration::from_secs(followed.saturating_sub(1) as u64) / u32::try_from(per_second).unwrap_or(u32::MAX).max(1)
}

/// The services that the streams follow: one that ten streams follow counts ten times.
#[derive(Debug, Default)]
pub(super) struct Followers(AtomicUsize);

impl Followers {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one stream follows, counted until it ends.
#[derive(Debug)]
pub(super) struct Counted {
    following: Arc<Following>,
    followers: Arc<Followers>,
}

impl Counted {
    pub(super) fn new(following: Arc<Following>, followers: Arc<Followers>) -> Self {
        followers.0.fetch_add(following.services.len(), Ordering::Relaxed);
        Self { following, followers }
    }

    /// The stream follows this now.
    pub(super) fn replace(&mut self, following: Arc<Following>) {
        self.followers.0.fetch_add(following.services.len(), Ordering::Relaxed);
        self.followers.0.fetch_sub(self.following.services.len(), Ordering::Relaxed);
        self.following = following;
    }
}

impl Deref for Counted {
    type Target = Following;

    fn deref(&self) -> &Following {
        &self.following
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.followers.0.fetch_sub(self.following.services.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_grows_with_what_is_followed() {
        for (followed, per_second, expected) in
            [(0, 200, 0), (1, 200, 0), (2, 200, 5), (10, 200, 45), (10_001, 200, 50_000), (3, 1, 2_000)]
        {
            assert_eq!(spread(followed, per_second), Duration::from_millis(expected), "{followed}");
        }
        assert_eq!(spread(2, 0), Duration::from_secs(1), "which the configuration refuses");
    }

    #[test]
    fn streams_are_counted_as_they_come_change_and_go() {
        let followers = Arc::new(Followers::default());
        let following = |names: &[&str]| {
            let services = names.iter().map(|name| name.parse().unwrap()).collect();
            Arc::new(Following::new(services, 1))
        };
        let mut one = Counted::new(following(&["docs", "shop"]), followers.clone());
        let two = Counted::new(following(&["shop"]), followers.clone());
        assert_eq!(followers.count(), 3);
        one.replace(following(&["docs", "shop"]));
        assert_eq!(followers.count(), 3);
        one.replace(following(&["docs"]));
        assert_eq!(followers.count(), 2);
        drop((one, two));
        assert_eq!(followers.count(), 0);
    }
}
