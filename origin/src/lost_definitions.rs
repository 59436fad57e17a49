//! Detects that the catalog may lack definitions of operators, which are stored only in the records. Edges must not
//! drop a service because its definition was lost.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use weir_publish::{Publisher, Repositories};

/// A store counts as new for this long while operators have defined nothing in it.
const NEW_FOR: Duration = Duration::from_secs(24 * 3600);

/// Tells whether services may be missing from the catalog. Clones are cheap.
#[derive(Clone)]
pub(crate) struct LostDefinitions {
    repositories: Arc<Repositories>,
    /// When the store was first used.
    created_at: SystemTime,
    /// Whether there is an operators' listener.
    operators: bool,
}

impl LostDefinitions {
    pub(crate) fn new(publisher: &Publisher, operators: bool) -> Self {
        Self { repositories: publisher.repositories.clone(), created_at: publisher.identity.created_at, operators }
    }

    /// Whether the store is suspiciously new: a lost or emptied volume looks like a first installation.
    pub(crate) fn is_store_new(&self, now: SystemTime) -> bool {
        self.operators && is_young(self.created_at, now) && !self.repositories.operators_have_defined()
    }

    /// How many repositories have objects but no record.
    pub(crate) fn without_record(&self) -> usize {
        self.repositories.without_record()
    }

    /// Why a service that is not in the catalog may still be defined.
    pub(crate) fn why(&self, now: SystemTime) -> Option<&'static str> {
        if self.is_store_new(now) {
            Some("the origin's store is new and operators have defined nothing in it: its data may have been lost")
        } else if self.repositories.may_have_unknown_definitions() {
            Some("some definitions of operators cannot be read: the origin's log has the reason")
        } else {
            None
        }
    }
}

fn is_young(created_at: SystemTime, now: SystemTime) -> bool {
    now.duration_since(created_at).unwrap_or_default() < NEW_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_new_for_a_day() {
        let created_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert!(is_young(created_at, created_at) && is_young(created_at, created_at + NEW_FOR / 2));
        assert!(!is_young(created_at, created_at + NEW_FOR));
    }
}
