//! Versions that a query found although the event stream was in step: did the stream announce them after all?
//!
//! A query may overtake the stream, which is no fault. An origin announces what it publishes before its next heartbeat
//! is written; the heartbeat after a version was found may have been under way by then, the one after that was not.

use std::collections::HashMap;

use weir_shared::name::ServiceName;

use super::entry::Order;

/// Versions that are remembered at a time, for each origin. Further ones are not counted as missed.
const MAX_FOUND: usize = 1024;

/// Heartbeats after which a version that was not announced is missed.
const HEARTBEATS: u32 = 2;

/// The versions of one origin that queries found and that were not announced yet.
#[derive(Debug, Default)]
pub(super) struct Missed {
    found: HashMap<ServiceName, (Order, u32)>,
}

impl Missed {
    /// A query found a version.
    pub(super) fn found(&mut self, service: &ServiceName, version: Order) {
        if self.found.len() < MAX_FOUND || self.found.contains_key(service) {
            self.found.insert(service.clone(), (version, 0));
        }
    }

    /// The stream has announced a version, or it was known already.
    pub(super) fn announced(&mut self, service: &ServiceName, version: Order) {
        if self.found.get(service).is_some_and(|(found, _)| *found <= version) {
            self.found.remove(service);
        }
    }

    /// A heartbeat came. Returns the services of which the stream has missed a version.
    pub(super) fn heartbeat(&mut self) -> Vec<(ServiceName, Order)> {
        let over = self.found.extract_if(|_, (_, heartbeats)| {
            *heartbeats += 1;
            *heartbeats >= HEARTBEATS
        });
        over.map(|(service, (version, _))| (service, version)).collect()
    }

    /// The stream broke off: when it is resumed it announces them.
    pub(super) fn clear(&mut self) {
        self.found.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_announced_by_the_second_heartbeat_was_not_missed() {
        let (shop, docs): (ServiceName, ServiceName) = ("shop".parse().unwrap(), "docs".parse().unwrap());
        let mut missed = Missed::default();
        missed.found(&shop, (7, 1));
        assert_eq!(missed.heartbeat(), [], "it may have been under way");
        missed.found(&docs, (3, 1));
        missed.announced(&shop, (7, 1));
        assert_eq!(missed.heartbeat(), []);
        missed.announced(&docs, (2, 9));
        assert_eq!(missed.heartbeat(), [(docs, (3, 1))]);
        assert_eq!(missed.heartbeat(), [], "it is counted once");
        missed.found(&shop, (8, 1));
        missed.clear();
        assert_eq!((missed.heartbeat(), missed.heartbeat()), (vec![], vec![]));
    }

    #[test]
    fn the_number_of_remembered_versions_is_bounded() {
        let mut missed = Missed::default();
        for number in 0..2 * MAX_FOUND {
            missed.found(&format!("s{number}").parse().unwrap(), (1, 1));
        }
        missed.heartbeat();
        assert_eq!(missed.heartbeat().len(), MAX_FOUND);
    }
}
