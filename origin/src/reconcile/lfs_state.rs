//! The observable state of missing LFS objects.

use std::time::{Instant, SystemTime};

use super::lfs::LfsProgress;
use super::state::{LfsFailure, LfsState};
use super::worker::Worker;

impl Worker {
    /// Handles that a build started or ended to fetch LFS objects.
    pub(super) fn handle_lfs_progress(&mut self, LfsProgress { service, missing }: &LfsProgress) {
        if !self.builds.contains_key(service) {
            return;
        }
        self.states.set_fetches_lfs(service, missing.is_some());
        self.maintenance.needs_bundle |= missing.is_none();
        if let Some(missing) = *missing {
            self.unapplied_polls.remove(service);
            let (_, objects) = self.waits_for_lfs.entry(service.clone()).or_insert((SystemTime::now(), missing));
            *objects = missing;
        }
    }

    pub(super) fn update_lfs_state(&mut self) {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let system_time = |at: Instant| clock + at.saturating_duration_since(now);
        let held_until = self.pipeline.lfs.held_until(now).map(|(until, _)| system_time(until));
        if self.waits_for_lfs.is_empty() && held_until.is_none() && self.state.borrow().lfs.is_none() {
            return;
        }
        let failure = self.back_offs.oldest_of_step("lfs").map(|failed| LfsFailure {
            since: failed.since,
            reason: self.context.data_dir.redact(&failed.failure.reason),
            attempts: failed.attempts,
        });
        let lfs = LfsState {
            services: self.waits_for_lfs.iter().map(|(name, (since, _))| (name.clone(), *since)).collect(),
            objects: self.waits_for_lfs.values().map(|(_, objects)| objects).sum(),
            fetching: self.states.any_fetches_lfs(),
            waits_for: None,
            failure,
            next_attempt: self.back_offs.next().map(system_time),
            held_until,
        };
        let lfs = Some(lfs).filter(|_| !self.waits_for_lfs.is_empty() || held_until.is_some());
        self.state.send_if_modified(|state| {
            let before = std::mem::replace(&mut state.lfs, lfs);
            // The fetch sets this itself.
            if let (Some(before), Some(lfs)) = (&before, &mut state.lfs) {
                lfs.waits_for = before.waits_for;
            }
            before != state.lfs
        });
    }
}
