//! Repositories that nobody defines any more: their owner removes the services, frees the names, and deletes the record.

use super::super::names::Entry;
use super::clock::Micros;
use super::engine::{Operation, RowState};
use super::world::{Sender, World};

/// A repository is removed when nobody has defined it for this time: longer than clocks differ, and than a node pauses.
const REMOVED_AFTER: Micros = 150_000_000;

impl World {
    /// The repository is defined, or not any more, from time to time. Returns whether it is not: what its owner does then.
    pub(super) fn undefines(&mut self, index: usize, repository: usize, id: u64) -> bool {
        let dice = self.rng.u8(..100);
        let Some(since) = self.undefined.get(&repository).copied() else {
            if dice == 0 && self.now < self.chaos_ends {
                self.trace(|| format!("r{repository} is not defined any more"));
                self.undefined.insert(repository, self.now);
            }
            return false;
        };
        if dice < 2 {
            self.trace(|| format!("r{repository} is defined again"));
            self.undefined.remove(&repository);
            return false;
        }
        let is_free = !self.engine.names.values().flat_map(|(names, _)| names.iter()).any(
            |(_, entry)| matches!(entry, Entry::Held { repository: holder, .. } if *holder == self.names[repository]),
        );
        let now = self.now;
        let Some(writer) = self.working(index, repository, id).filter(|writer| writer.is_settled()) else {
            return true;
        };
        // Each owner waits for the whole time. So no record lives for a shorter one, and the clock has passed its fences.
        let is_late = since.max(writer.started_at) + REMOVED_AFTER < now;
        if !writer.taken.is_empty() {
            // An edit comes to its end first.
            return false;
        }
        let Some(mut body) = writer.body().cloned() else { return true };
        if let Some(row) = body.rows.values_mut().find(|row| row.state != RowState::Gone) {
            row.state = RowState::Gone;
            self.put_services(index, repository, id, body);
        } else if !is_free {
            self.free_unused(index, repository, id);
        } else if is_late {
            self.delete(index, repository, id);
        }
        true
    }

    /// Deletes the record as it is. Whatever comes of it, the writer ends as if another node had written it.
    fn delete(&mut self, index: usize, repository: usize, id: u64) {
        let Some(expect) = self.working(index, repository, id).map(|writer| writer.begin_deletion()) else { return };
        self.request(index, Sender::Done, Operation::DeleteRepository { repository, expect });
        self.supersede(index, repository);
    }
}
