//! Detects that the catalog may lack definitions of operators, which are stored only in the records. Edges must not
//! drop a service because its definition was lost.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::catalog::Snapshot;
use crate::publish::Publisher;

/// A store counts as new for this long while operators have defined nothing in it.
const NEW_FOR: Duration = Duration::from_secs(24 * 3600);

/// Tells whether services may be missing from the catalog. Clones are cheap.
#[derive(Clone)]
pub(crate) struct LostDefinitions {
    publisher: Arc<Publisher>,
    /// Whether there is an operators' listener.
    operators: bool,
}

impl LostDefinitions {
    pub(crate) fn new(publisher: Arc<Publisher>, operators: bool) -> Self {
        Self { publisher, operators }
    }

    /// Whether the store is suspiciously new: a lost or emptied volume looks like a first installation.
    pub(crate) fn is_store_new(&self, snapshot: &Snapshot, now: SystemTime) -> bool {
        self.operators && is_new(self.publisher.store_created_at(), snapshot, now)
    }

    /// How many repositories have objects but no record.
    pub(crate) fn without_record(&self) -> usize {
        self.publisher.without_record()
    }

    /// Why a service that is not in the catalog may still be defined.
    pub(crate) fn why(&self, snapshot: &Snapshot, now: SystemTime) -> Option<&'static str> {
        if self.is_store_new(snapshot, now) {
            Some("the origin's store is new and operators have defined nothing in it: its data may have been lost")
        } else if self.publisher.may_have_unknown_definitions() {
            Some("some definitions of operators cannot be read: the origin's log has the reason")
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
