//! Operators' definitions that the catalogue may lack. They are nowhere else than in the records, and an origin that answered
//! that their services do not exist would have edges give them up.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::catalog::Snapshot;
use crate::publish::Publisher;

/// How long a store counts as new while operators have defined nothing in it.
const NEW_FOR: Duration = Duration::from_secs(24 * 3600);

/// Whether there may be services that the catalogue does not have. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LostDefinitions {
    publisher: Arc<Publisher>,
    /// Whether there is a listener on which operators define things.
    operators: bool,
}

impl LostDefinitions {
    pub(crate) fn new(publisher: Arc<Publisher>, operators: bool) -> Self {
        Self { publisher, operators }
    }

    /// Whether the store is suspiciously new: a data volume that was lost or emptied looks like a first installation.
    pub(crate) fn is_store_new(&self, snapshot: &Snapshot, now: SystemTime) -> bool {
        self.operators && is_new(self.publisher.store_created_at(), snapshot, now)
    }

    /// How many repositories have objects, and no record.
    pub(crate) fn without_record(&self) -> usize {
        self.publisher.without_record()
    }

    /// Why a service that the catalogue does not have may be defined all the same.
    pub(crate) fn why(&self, snapshot: &Snapshot, now: SystemTime) -> Option<&'static str> {
        if self.is_store_new(snapshot, now) {
            Some("the origin's store is new and operators have defined nothing in it: its data may have been lost")
        } else if self.publisher.may_have_unknown_definitions() {
            Some("not everything that operators defined can be read: the origin's log says why")
        } else {
            None
        }
    }
}

fn is_new(created_at: SystemTime, snapshot: &Snapshot, now: SystemTime) -> bool {
    now.duration_since(created_at).unwrap_or_default() < NEW_FOR && !snapshot.operators_have_defined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_store_without_any_definition_is_suspect() {
        let created_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let suspect = |operators_have_defined, age| {
            is_new(created_at, &Snapshot { operators_have_defined, ..Snapshot::default() }, created_at + age)
        };
        assert!(suspect(false, Duration::ZERO) && suspect(false, NEW_FOR / 2));
        assert!(!suspect(true, Duration::ZERO));
        assert!(!suspect(false, NEW_FOR));
    }
}
