//! The services of lists, and since when lists lack some of them: absence is believed late. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use weir_protocol::name::ServiceName;

/// Services with the time since when lists lack them.
#[derive(Debug, Default)]
pub(crate) struct Listed(BTreeMap<ServiceName, Option<Instant>>);

impl Listed {
    /// An edge lists these services. What it does not list is absent from now on, if it was not before.
    pub(crate) fn list(&mut self, services: &BTreeSet<ServiceName>, now: Instant) {
        self.0.values_mut().for_each(|absent| *absent = absent.or(Some(now)));
        self.0.extend(services.iter().map(|service| (service.clone(), None)));
    }

    /// Whether a service has been absent for so long that all edges are to be asked.
    pub(crate) fn is_overdue(&self, after: Duration, now: Instant) -> bool {
        self.0.values().flatten().any(|absent| now.duration_since(*absent) >= after)
    }

    /// All edges were asked, and list these services together. What has been absent for long enough ends, unless one of them
    /// has it; then all are asked again after the same time. `None`: an edge that counts did not answer.
    pub(crate) fn end(&mut self, services: Option<&BTreeSet<ServiceName>>, after: Duration, now: Instant) {
        self.0.retain(|service, absent| match absent {
            Some(since) if now.duration_since(*since) >= after => {
                *since = now;
                services.is_none_or(|services| services.contains(service))
            }
            _ => true,
        });
    }

    /// The services are these, as the configuration says.
    pub(crate) fn set(&mut self, services: impl IntoIterator<Item = ServiceName>) {
        let mut before = std::mem::take(&mut self.0);
        self.0.extend(services.into_iter().map(|service| {
            let absent = before.remove(&service).flatten();
            (service, absent)
        }));
    }

    /// All services, and whether lists lack them.
    pub(crate) fn services(&self) -> impl Iterator<Item = (&ServiceName, bool)> {
        self.0.iter().map(|(service, absent)| (service, absent.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(600);

    fn names(names: &[&str]) -> BTreeSet<ServiceName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn shown(listed: &Listed) -> Vec<String> {
        listed.services().map(|(service, absent)| format!("{service}{}", if absent { "?" } else { "" })).collect()
    }

    #[test]
    fn a_service_ends_when_all_lists_lack_it_for_long_enough() {
        let start = Instant::now();
        let mut listed = Listed::default();
        listed.set(names(&["bank", "docs", "shop"]));
        listed.list(&names(&["bank"]), start);
        assert_eq!(shown(&listed), ["bank", "docs?", "shop?"]);
        let just_before = start + AFTER - Duration::from_secs(1);
        listed.list(&names(&["shop"]), just_before);
        assert_eq!(shown(&listed), ["bank?", "docs?", "shop"]);
        assert!(!listed.is_overdue(AFTER, just_before) && listed.is_overdue(AFTER, start + AFTER));
        listed.end(Some(&names(&["shop"])), AFTER, start + AFTER);
        assert_eq!(shown(&listed), ["bank?", "shop"], "`bank` is not absent for that long");
    }

    #[test]
    fn a_service_stays_while_one_edge_lists_it_or_may_list_it() {
        let start = Instant::now();
        let mut listed = Listed::default();
        listed.set(names(&["docs"]));
        listed.list(&names(&[]), start);
        for (turn, all) in [(1, Some(names(&["docs"]))), (2, None)] {
            let now = start + turn * AFTER;
            assert!(listed.is_overdue(AFTER, now));
            listed.end(all.as_ref(), AFTER, now);
            assert_eq!(shown(&listed), ["docs?"]);
            assert!(!listed.is_overdue(AFTER, now), "it is asked for again after the same time");
        }
        listed.end(Some(&names(&[])), AFTER, start + 3 * AFTER);
        assert_eq!(shown(&listed), [""; 0]);
    }
}
