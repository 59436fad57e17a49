//! How many event streams of this edge follow each service, and over what their agents spread their fetches.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_protocol::name::ServiceName;

use super::rows::Following;

/// Over what agents that learn of something at one moment spread their requests, so that an edge gets no more than this many
/// in a second. Pure. A single one waits for nobody.
pub(super) fn spread(agents: usize, per_second: usize) -> Duration {
    Duration::from_secs(agents.saturating_sub(1) as u64) / u32::try_from(per_second).unwrap_or(u32::MAX).max(1)
}

/// The streams that follow each service. As large as what the streams themselves have in memory, at most.
#[derive(Debug, Default)]
pub(super) struct Followers {
    streams: Mutex<HashMap<ServiceName, usize>>,
}

impl Followers {
    /// The streams that follow a service now.
    pub(super) fn of(&self, service: &ServiceName) -> usize {
        self.streams().get(service).copied().unwrap_or(0)
    }

    fn add(&self, services: &[ServiceName]) {
        let mut streams = self.streams();
        services.iter().for_each(|service| *streams.entry(service.clone()).or_default() += 1);
    }

    fn remove(&self, services: &[ServiceName]) {
        let mut streams = self.streams();
        for service in services {
            let Some(count) = streams.get_mut(service) else { continue };
            *count -= 1;
            if *count == 0 {
                streams.remove(service);
            }
        }
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<ServiceName, usize>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
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
        followers.add(&following.services);
        Self { following, followers }
    }

    /// The stream follows this now.
    pub(super) fn replace(&mut self, following: Arc<Following>) {
        if following.services != self.following.services {
            self.followers.add(&following.services);
            self.followers.remove(&self.following.services);
        }
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
        self.followers.remove(&self.following.services);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_grows_with_the_agents() {
        for (agents, per_second, expected) in
            [(0, 200, 0), (1, 200, 0), (2, 200, 5), (10, 200, 45), (10_001, 200, 50_000), (3, 1, 2_000)]
        {
            assert_eq!(spread(agents, per_second), Duration::from_millis(expected), "{agents}");
        }
        assert_eq!(spread(2, 0), Duration::from_secs(1), "which the configuration refuses");
    }

    #[test]
    fn streams_are_counted_as_they_come_change_and_go() {
        let followers = Arc::new(Followers::default());
        let following = |names: &[&str]| {
            let services = names.iter().map(|name| name.parse().unwrap()).collect();
            Arc::new(Following::new(services, [].into(), Arc::default(), 1))
        };
        let counts = || ["docs", "shop"].map(|name| followers.of(&name.parse().unwrap()));
        let mut one = Counted::new(following(&["docs", "shop"]), followers.clone());
        let two = Counted::new(following(&["shop"]), followers.clone());
        assert_eq!(counts(), [1, 2]);
        one.replace(following(&["docs", "shop"]));
        assert_eq!(counts(), [1, 2]);
        one.replace(following(&["docs"]));
        assert_eq!(counts(), [1, 1]);
        drop((one, two));
        assert_eq!(counts(), [0, 0]);
        assert!(followers.streams().is_empty());
    }
}
