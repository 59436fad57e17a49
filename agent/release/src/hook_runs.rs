//! Which run of the hooks is due, and what came of it.

use std::time::SystemTime;

use crate::directory::ServiceDirectory;
use crate::error::ReleaseError;
use crate::name::ReleaseName;
use crate::state::HookJob;

impl ServiceDirectory {
    /// The pending run of `exec`, if any.
    pub fn hook_job(&self) -> Option<HookJob> {
        self.cached().state.hook_job()
    }

    /// The pending run of `exec`, if any. Its release is not pruned while it runs.
    pub fn begin_hook(&self) -> Option<HookJob> {
        let mut cached = self.cached();
        let job = cached.state.hook_job();
        cached.in_use = job.as_ref().map(|job| job.release.directory);
        job
    }

    /// Marks the hooks as pending if they last succeeded with other labels. `labels`: the hash of the present ones.
    pub fn require_labels(&self, labels: &str) -> Result<(), ReleaseError> {
        self.change(|state| state.require_labels(labels))
    }

    /// Records the end of `exec`, unless another release is in force by now. `hooks`, `labels`: the hashes of those that ran, and
    /// of what they got.
    pub fn end_hook(
        &self,
        release: ReleaseName,
        succeeded: bool,
        hooks: &str,
        labels: Option<&str>,
    ) -> Result<(), ReleaseError> {
        self.cached().in_use = None;
        self.change(|state| {
            if state.release.as_ref().is_some_and(|present| present.directory == release) {
                state.hook_ended(succeeded, hooks, labels, SystemTime::now());
            }
        })
    }
}
