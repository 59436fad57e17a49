//! Looking after a mirror: what is counted and logged of it.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use super::GitSource;
use super::mirror::{MaintenanceError, MirrorSize, Upkeep, UpkeepBounds};
use crate::source::MaintenanceRequest;

/// LFS objects that came within this time stay: a build that needs them may be about to begin.
const SPARED: Duration = Duration::from_secs(24 * 3600);

impl GitSource {
    /// Keeps the mirror up, and removes LFS objects that nothing needs, if that is asked for.
    pub(super) fn keep_mirror_up(&self, request: &MaintenanceRequest<'_>, stop: &AtomicBool) {
        match self.kept_up(request, stop) {
            Ok((done, MirrorSize { packs, bytes })) => {
                let (name, metrics) = (self.repository.as_str(), &self.shared.metrics);
                metrics.mirror_packs.with_label_values(&[name]).set(i64::try_from(packs).unwrap_or(i64::MAX));
                metrics.mirror_bytes.with_label_values(&[name]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
                match done {
                    Upkeep::NotDue => {}
                    Upkeep::Joined => self.count_repack("joined"),
                    Upkeep::Full => self.count_repack("full"),
                }
                if done != Upkeep::NotDue {
                    tracing::info!(repository = name, packs, full = done == Upkeep::Full, "the mirror was repacked");
                }
            }
            Err(error) => {
                match &error {
                    // It may have found a pack that is damaged.
                    MaintenanceError::Repack(_) => self.mirror.trouble(Instant::now()),
                    MaintenanceError::Lost(_) => self.mirror.is_of_no_use(error.to_string()),
                    _ => {}
                }
                self.repack_failed(&error);
            }
        }
    }

    fn kept_up(
        &self,
        request: &MaintenanceRequest<'_>,
        stop: &AtomicBool,
    ) -> Result<(Upkeep, MirrorSize), MaintenanceError> {
        let MaintenanceRequest { published, sweep } = *request;
        let failed = |error: &dyn std::fmt::Display| MaintenanceError::Local(error.to_string());
        let mirror = self.mirror.get().map_err(|error| failed(&error))?;
        let kept = || {
            let commits = published.as_ref().map_err(|error| failed(error))?;
            Ok(commits.iter().map(|(_, commit)| commit.clone()).collect())
        };
        let (min_free, max_mirror) = (self.shared.min_free, self.shared.upstreams.max_mirror.as_u64());
        let done = mirror.keep_up(kept, &UpkeepBounds { min_free, max_mirror }, SystemTime::now(), stop);
        // Also when there is no room for a repack: these objects may be what takes it.
        if let Some(services) = sweep
            && let Err(failure) = self.sweep(services, published, SPARED, stop)
        {
            let reason = self.shared.data_dir.redact(&failure.reason);
            tracing::warn!(repository = %self.repository, reason, "LFS objects that nothing needs are not removed");
        }
        let done = done?;
        Ok((done, mirror.size().map_err(|error| failed(&error))?))
    }

    pub(super) fn repack_failed(&self, error: &MaintenanceError) {
        self.count_repack("failed");
        let error = self.shared.data_dir.redact(&error.to_string());
        tracing::warn!(repository = %self.repository, error, "the mirror was not repacked; it is tried again, later each time");
    }

    fn count_repack(&self, result: &str) {
        self.shared.metrics.repacks.with_label_values(&[self.repository.as_str(), result]).inc();
    }
}
