//! Which small blobs were asked for lately: when their turn to leave the disk comes, they are written anew.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use foyer::{Statistics, StorageFilterCondition, StorageFilterResult};

/// Names that are remembered before the older half of them is forgotten.
const GENERATION: usize = 16 << 10;

/// The hashes of names, in two generations.
#[derive(Debug, Default)]
pub(super) struct Wanted(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Wanted {
    /// A blob was asked for.
    pub(super) fn note(&self, hash: u64) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.young.len() >= GENERATION {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(hash);
    }

    fn holds(&self, hash: u64) -> bool {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.contains(&hash) || generations.old.contains(&hash)
    }

    /// Whether a blob was asked for since it was written the last time; from now on it was not.
    fn take(&self, hash: u64) -> bool {
        let is_wanted = self.holds(hash);
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.remove(&hash);
        generations.old.remove(&hash);
        is_wanted
    }
}

/// Asked by foyer for each blob in a file that is about to be used anew.
#[derive(Debug)]
pub(super) struct IsWanted(pub(super) Arc<Wanted>);

impl StorageFilterCondition for IsWanted {
    fn filter(&self, _: &Arc<Statistics>, hash: u64, _: usize) -> StorageFilterResult {
        if self.0.take(hash) { StorageFilterResult::Admit } else { StorageFilterResult::Reject }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_wanted_once_and_the_names_are_bounded() {
        let wanted = Wanted::default();
        wanted.note(1);
        assert!(wanted.take(1) && !wanted.take(1));
        for hash in 0..3 * GENERATION as u64 {
            wanted.note(hash);
        }
        assert!(!wanted.holds(0) && wanted.holds(3 * GENERATION as u64 - 1));
        let generations = wanted.0.lock().unwrap();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
    }
}
