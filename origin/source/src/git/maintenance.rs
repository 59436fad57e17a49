//! Maintenance of a mirror: calls it, and counts and logs the result.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use weir_git::mirror::{MaintenanceError, MaintenanceLimits, MirrorSize, Repack};

use super::GitSource;
use crate::MaintenanceRequest;

/// LFS objects younger than this are kept: a build that needs them may be about to start.
const GRACE_PERIOD: Duration = Duration::from_secs(24 * 3600);

impl GitSource {
    /// Repacks the mirror if this is due, and collects LFS garbage if the request says so.
    pub fn maintain_mirror(&self, request: &MaintenanceRequest<'_>, stop: &AtomicBool) {
        match self.maintain(request, stop) {
            Ok((done, MirrorSize { packs, bytes })) => {
                let (name, metrics) = (self.repository.as_str(), &self.shared.metrics);
                metrics.mirror_packs.with_label_values(&[name]).set(i64::try_from(packs).unwrap_or(i64::MAX));
                metrics.mirror_bytes.with_label_values(&[name]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
                if let Some(repack) = done {
                    let full = repack == Repack::Full;
                    self.count_repack(if full { "full" } else { "joined" });
                    tracing::info!(repository = name, packs, full, "the mirror was repacked");
                }
            }
            Err(error) => {
                match &error {
                    // The repack may have failed over a damaged pack.
                    MaintenanceError::Repack(_) => self.mirror.mark_suspect(Instant::now()),
                    MaintenanceError::LostObjects(_) => self.mirror.mark_unusable(error.to_string()),
                    _ => {}
                }
                self.repack_failed(&error);
            }
        }
    }

    fn maintain(
        &self,
        request: &MaintenanceRequest<'_>,
        stop: &AtomicBool,
    ) -> Result<(Option<Repack>, MirrorSize), MaintenanceError> {
        let MaintenanceRequest { published, sweep } = *request;
        let failed = |error: &dyn std::fmt::Display| MaintenanceError::Local(error.to_string());
        let mirror = self.mirror.get().map_err(|error| failed(&error))?;
        let retained = || {
            let revisions = published.as_ref().map_err(|unknown| failed(&unknown.reason))?;
            Ok(revisions.iter().filter_map(|(_, revision)| revision.commit()).collect())
        };
        let (min_free, max_mirror) = (self.shared.min_free, self.shared.upstreams.max_mirror.as_u64());
        let done = mirror.maintain(retained, &MaintenanceLimits { min_free, max_mirror }, SystemTime::now(), stop);
        // Also after a repack failed for lack of disk space: these objects may be the cause.
        if let Some(services) = sweep
            && let Err(failure) = self.collect_lfs_garbage(services, published, GRACE_PERIOD, stop)
        {
            let reason = self.shared.data_dir.redact(&failure.reason);
            tracing::warn!(repository = %self.repository, reason, "unneeded LFS objects were not removed");
        }
        let done = done?;
        Ok((done, mirror.size().map_err(|error| failed(&error))?))
    }

    pub(super) fn repack_failed(&self, error: &MaintenanceError) {
        self.count_repack("failed");
        let error = self.shared.data_dir.redact(&error.to_string());
        tracing::warn!(repository = %self.repository, error, "the mirror was not repacked; the next attempt follows after a back-off");
    }

    fn count_repack(&self, result: &str) {
        self.shared.metrics.repacks.with_label_values(&[self.repository.as_str(), result]).inc();
    }
}
