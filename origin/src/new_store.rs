//! A store that is new although it should not be: a data volume that was lost or emptied looks like a first installation.
//! Operators' definitions are nowhere else, and an origin that answered that their services do not exist would have edges
//! give them up.

use std::time::{Duration, SystemTime};

use crate::catalog::Snapshot;

/// How long a store counts as new while operators have defined nothing in it.
const NEW_FOR: Duration = Duration::from_secs(24 * 3600);

/// What makes a loss possible.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewStore {
    pub(crate) created_at: SystemTime,
    /// Whether there is a listener on which operators define things.
    pub(crate) operators: bool,
}

impl NewStore {
    /// Whether operators' definitions may have been lost: the store is new, and holds none.
    pub(crate) fn may_have_lost_definitions(&self, snapshot: &Snapshot, now: SystemTime) -> bool {
        let is_new = now.duration_since(self.created_at).unwrap_or_default() < NEW_FOR;
        self.operators && is_new && !snapshot.operators_have_defined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_store_of_operators_without_any_definition_is_suspect() {
        let created_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let suspect = |operators, operators_have_defined, age| {
            let snapshot = Snapshot { operators_have_defined, ..Snapshot::default() };
            NewStore { created_at, operators }.may_have_lost_definitions(&snapshot, created_at + age)
        };
        assert!(suspect(true, false, Duration::ZERO) && suspect(true, false, NEW_FOR / 2));
        assert!(!suspect(false, false, Duration::ZERO), "nobody could have defined anything");
        assert!(!suspect(true, true, Duration::ZERO));
        assert!(!suspect(true, false, NEW_FOR));
    }
}
