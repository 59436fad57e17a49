//! The names that appeared in the catalog or went: readers of all names look only at those.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_protocol::name::ServiceName;

/// The most changes that are remembered. Who is further behind looks at all names.
const MAX_CHANGES: usize = 4096;

/// The last changes, oldest first.
#[derive(Debug, Default)]
pub(super) struct NameChanges {
    /// All changes so far.
    version: AtomicU64,
    last: Mutex<VecDeque<ServiceName>>,
}

impl NameChanges {
    pub(super) fn add(&self, service: &ServiceName) {
        let mut last = self.last();
        if last.len() == MAX_CHANGES {
            last.pop_front();
        }
        last.push_back(service.clone());
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The names that changed since a version, with the present one. `None`: they are not remembered.
    pub(super) fn since(&self, version: u64) -> Option<(u64, Vec<ServiceName>)> {
        let last = self.last();
        let now = self.version();
        let count = usize::try_from(now.checked_sub(version)?).ok()?;
        let first = last.len().checked_sub(count)?;
        Some((now, last.range(first..).cloned().collect()))
    }

    fn last(&self) -> MutexGuard<'_, VecDeque<ServiceName>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_changes_are_remembered() {
        let (changes, name) = (NameChanges::default(), |n: usize| format!("s{n}").parse::<ServiceName>().unwrap());
        (0..MAX_CHANGES + 2).for_each(|n| changes.add(&name(n)));
        let now = changes.version();
        assert_eq!(changes.since(now), Some((now, Vec::new())));
        assert_eq!(changes.since(now - 1), Some((now, vec![name(MAX_CHANGES + 1)])));
        assert_eq!(changes.since(2).map(|(_, names)| names.len()), Some(MAX_CHANGES));
        assert_eq!((changes.since(1), changes.since(now + 1)), (None, None));
    }
}
