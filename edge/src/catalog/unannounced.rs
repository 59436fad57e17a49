//! Versions that a query found and the event stream has not announced yet. Pure.

use std::collections::HashMap;

use weir_cache::OriginId;
use weir_cache::clock::Moment;
use weir_protocol::name::ServiceName;

use super::entry::VersionNumber;

/// The heartbeats that a stream has to announce a version. The first may have been sent before the version was published.
const HEARTBEATS: u32 = 2;

/// The latest such version of each service.
#[derive(Debug, Default)]
pub(super) struct Unannounced(HashMap<ServiceName, Found>);

#[derive(Debug)]
struct Found {
    origin: OriginId,
    version: VersionNumber,
    at: Moment,
    heartbeats: u32,
}

impl Unannounced {
    /// A query found a version, `at` this time.
    pub(super) fn found(&mut self, service: ServiceName, origin: OriginId, version: VersionNumber, at: Moment) {
        self.0.insert(service, Found { origin, version, at, heartbeats: 0 });
    }

    /// The event stream announced a version.
    pub(super) fn announced(&mut self, service: &ServiceName, version: VersionNumber) {
        if self.0.get(service).is_some_and(|found| found.version <= version) {
            self.0.remove(service);
        }
    }

    /// A heartbeat of an origin, sent at this time. Returns the services of which its stream has missed a version.
    pub(super) fn heartbeat(&mut self, origin: OriginId, at: Moment) -> Vec<ServiceName> {
        let missed = self.0.extract_if(|_, found| {
            found.heartbeats += u32::from(found.origin == origin && found.at < at);
            found.heartbeats >= HEARTBEATS
        });
        missed.map(|(service, _)| service).collect()
    }

    /// The event stream of an origin ended: what it announces later is no proof of a missed event.
    pub(super) fn stream_ended(&mut self, origin: OriginId) {
        self.0.retain(|_, found| found.origin != origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weir_cache::clock::Clock;

    #[test]
    fn a_version_is_missed_at_the_second_heartbeat_after_it_was_found() {
        let begin = Clock::start().now();
        let at = |seconds| begin.after(Duration::from_secs(seconds));
        let shop: ServiceName = "shop".parse().unwrap();
        let missed_after = |prepare: &dyn Fn(&mut Unannounced)| {
            let mut unannounced = Unannounced::default();
            unannounced.found(shop.clone(), 1, (8, 1), at(10));
            prepare(&mut unannounced);
            [9, 10, 11, 16, 21].map(|seconds| unannounced.heartbeat(1, at(seconds)).len())
        };
        assert_eq!(missed_after(&|_| {}), [0, 0, 0, 1, 0]);
        assert_eq!(missed_after(&|unannounced| unannounced.announced(&shop, (8, 1))), [0; 5]);
        assert_eq!(missed_after(&|unannounced| unannounced.announced(&shop, (9, 1))), [0; 5]);
        assert_eq!(missed_after(&|unannounced| unannounced.stream_ended(1)), [0; 5]);
        // Events about older versions, and those of other origins, change nothing.
        let others = |unannounced: &mut Unannounced| {
            unannounced.announced(&shop, (7, 1));
            unannounced.stream_ended(2);
            assert!(unannounced.heartbeat(2, at(20)).is_empty() && unannounced.heartbeat(2, at(30)).is_empty());
        };
        assert_eq!(missed_after(&others), [0, 0, 0, 1, 0]);
    }
}
