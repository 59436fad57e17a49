//! Services that are served although the disk has not taken them yet.
//!
//! A service of which nothing stands on disk can be served before it is written: were this process to die, its readers
//! would be where they are with any edge that never held it. Until it is written it is kept in memory whatever else goes,
//! so that its generations do not go back meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_shared::name::ServiceName;

use super::entry::Entry;

/// Services that may wait to be written. Further ones are refused while the disk fails.
pub(super) const MAX_UNDURABLE: usize = 10_000;

/// The services that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Undurable {
    entries: Mutex<HashMap<ServiceName, Arc<Entry>>>,
}

impl Undurable {
    pub(super) fn get(&self, service: &ServiceName) -> Option<Arc<Entry>> {
        self.entries().get(service).cloned()
    }

    /// Keeps what could not be written. False: there is no room.
    pub(super) fn keep(&self, service: &ServiceName, entry: &Arc<Entry>) -> bool {
        let mut entries = self.entries();
        let fits = entries.len() < MAX_UNDURABLE || entries.contains_key(service);
        if fits {
            entries.insert(service.clone(), entry.clone());
        }
        fits
    }

    pub(super) fn all(&self) -> Vec<(ServiceName, Arc<Entry>)> {
        self.entries().iter().map(|(service, entry)| (service.clone(), entry.clone())).collect()
    }

    /// Everything is on disk.
    pub(super) fn clear(&self) {
        self.entries().clear();
    }

    pub(super) fn len(&self) -> usize {
        self.entries().len()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<ServiceName, Arc<Entry>>> {
        // Nothing that can panic runs while it is held.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::service_table::entry::tests::entry;

    #[test]
    fn there_is_a_bound_and_what_is_kept_already_can_be_renewed() {
        let undurable = Undurable::default();
        let entry = Arc::new(entry(None, Clock::begin().now()));
        let service = |number: usize| format!("s{number}").parse().unwrap();
        assert!((0..MAX_UNDURABLE).all(|number| undurable.keep(&service(number), &entry)));
        assert!(!undurable.keep(&service(MAX_UNDURABLE), &entry) && undurable.keep(&service(0), &entry));
        assert_eq!(undurable.len(), MAX_UNDURABLE);
        undurable.clear();
        assert!(undurable.get(&service(0)).is_none());
    }
}
