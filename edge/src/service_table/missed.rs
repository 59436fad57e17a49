//! Versions that were found by asking although the event stream was in step: did it tell of them after all?
//!
//! A question may overtake the stream, which is no fault. An origin says of what it publishes before its next heartbeat
//! is written; the heartbeat after a version was found may have been on its way by then, the one after that was not.

use std::collections::HashMap;

use weir_shared::descriptor::Generation;
use weir_shared::name::ServiceName;

/// Versions that are remembered at a time. Further ones are not counted as missed.
const MAX_FOUND: usize = 1024;

/// Heartbeats after which a version that was not told is missed.
const HEARTBEATS: u32 = 2;

/// What orders the versions of a service: generation and revision.
pub(crate) type Order = (Generation, u64);

/// The versions of one origin that were found by asking and were not told yet.
#[derive(Debug, Default)]
pub(crate) struct Missed {
    found: HashMap<ServiceName, (Order, u32)>,
}

impl Missed {
    /// A version was found by asking.
    pub(crate) fn found(&mut self, service: &ServiceName, version: Order) {
        if self.found.len() < MAX_FOUND || self.found.contains_key(service) {
            self.found.insert(service.clone(), (version, 0));
        }
    }

    /// The stream has told of a version, or it was known already.
    pub(crate) fn told(&mut self, service: &ServiceName, version: Order) {
        if self.found.get(service).is_some_and(|(found, _)| *found <= version) {
            self.found.remove(service);
        }
    }

    /// A heartbeat came. Returns the services of which the stream has missed a version.
    pub(crate) fn heartbeat(&mut self) -> Vec<(ServiceName, Order)> {
        let over = self.found.extract_if(|_, (_, heartbeats)| {
            *heartbeats += 1;
            *heartbeats >= HEARTBEATS
        });
        over.map(|(service, (version, _))| (service, version)).collect()
    }

    /// The stream broke off: whoever resumes it will be told.
    pub(crate) fn forget(&mut self) {
        self.found.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_by_the_second_heartbeat_was_not_missed() {
        let (shop, docs): (ServiceName, ServiceName) = ("shop".parse().unwrap(), "docs".parse().unwrap());
        let mut missed = Missed::default();
        missed.found(&shop, (7, 1));
        assert_eq!(missed.heartbeat(), [], "it may have been on its way");
        missed.found(&docs, (3, 1));
        missed.told(&shop, (7, 1));
        assert_eq!(missed.heartbeat(), []);
        missed.told(&docs, (2, 9));
        assert_eq!(missed.heartbeat(), [(docs, (3, 1))]);
        assert_eq!(missed.heartbeat(), [], "it is counted once");
        missed.found(&shop, (8, 1));
        missed.forget();
        assert_eq!((missed.heartbeat(), missed.heartbeat()), (vec![], vec![]));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut missed = Missed::default();
        for number in 0..2 * MAX_FOUND {
            missed.found(&format!("s{number}").parse().unwrap(), (1, 1));
        }
        missed.heartbeat();
        assert_eq!(missed.heartbeat().len(), MAX_FOUND);
    }
}
