//! The observable state of missing LFS objects.

use std::time::{Instant, SystemTime};

use tokio::sync::watch;
use weir_upstream::DataDir;

use super::back_offs::BackOffs;
use super::service_states::ServiceStates;
use super::state::{LfsFailure, LfsState, RepositoryState};

/// Updates the state of missing LFS objects. `held_until`: the end of the server's `Retry-After`.
pub(super) fn update(
    state: &watch::Sender<RepositoryState>,
    states: &ServiceStates,
    back_offs: &BackOffs,
    held_until: Option<Instant>,
    data_dir: &DataDir,
) {
    let (now, clock) = (Instant::now(), SystemTime::now());
    let system_time = |at: Instant| clock + at.saturating_duration_since(now);
    let held_until = held_until.map(system_time);
    let is_waiting = states.lfs_waits().next().is_some();
    if !is_waiting && held_until.is_none() && state.borrow().lfs.is_none() {
        return;
    }
    let failure = back_offs.oldest_of_step("lfs").map(|failed| LfsFailure {
        since: failed.since,
        reason: data_dir.redact(&failed.failure.reason),
        attempts: failed.attempts,
    });
    let lfs = LfsState {
        services: states.lfs_waits().map(|(name, since, _)| (name.clone(), since)).collect(),
        objects: states.lfs_waits().map(|(_, _, objects)| objects).sum(),
        fetching: states.any_fetches_lfs(),
        waits_for: None,
        failure,
        next_attempt: back_offs.next().map(system_time),
        held_until,
    };
    let lfs = Some(lfs).filter(|_| is_waiting || held_until.is_some());
    state.send_if_modified(|state| {
        let before = std::mem::replace(&mut state.lfs, lfs);
        // The fetch sets this itself.
        if let (Some(before), Some(lfs)) = (&before, &mut state.lfs) {
            lfs.waits_for = before.waits_for;
        }
        before != state.lfs
    });
}
