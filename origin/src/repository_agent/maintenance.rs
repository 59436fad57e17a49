//! Upkeep of the mirror: after a poll that brought something, or a day. Polls and builds go on beside it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::OwnedSemaphorePermit;
use weir_shared::name::RepositoryName;

use super::build::Builder;
use super::context::Context;
use super::job::Job;
use super::lfs_sweep::is_due as sweep_is_due;
use super::worker::Worker;
use crate::mirror::{MaintenanceError, MirrorSize, Upkeep, UpkeepBounds};
use crate::service::Service;

/// A mirror is looked after so often though nothing is fetched: what was left behind before goes by time.
const LOOK_EVERY: Duration = Duration::from_secs(24 * 3600);

/// LFS objects that came within this time stay: a build that needs them may be about to begin.
const SPARED: Duration = Duration::from_secs(24 * 3600);

/// Upkeep under way. Dropped, it is told to stop; what it had not finished is as it was. No task of its own: it goes with
/// its owner, and the data directory with it.
pub(super) type KeepingUp = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Worker {
    /// Looks after the mirror, if there may be a reason to, and nobody else's is looked after at this moment: one at a time
    /// leaves the processor to those who publish.
    pub(super) fn begin_upkeep(&mut self) -> Option<KeepingUp> {
        let now = Instant::now();
        let long_ago = self.looked_after.is_none_or(|last| now.duration_since(last) >= LOOK_EVERY);
        // A mirror that could not be cloned anew says nothing of what is needed.
        let sweep_lfs = self.state.borrow().mirrored && sweep_is_due(self.lfs_swept, now);
        if !self.upkeep_due && !long_ago && !sweep_lfs {
            return None;
        }
        let permit = self.context.upkeep.clone().try_acquire_owned().ok()?;
        self.upkeep_due = false;
        self.looked_after = Some(now);
        if sweep_lfs {
            self.lfs_swept = Some(now);
        }
        let (builder, services) = (self.work.builder(), self.services.values().cloned().collect());
        let (name, context) = (self.config.name.clone(), self.context.clone());
        let services = sweep_lfs.then_some(services);
        Some(Box::pin(keep_up(builder, services, name, context, permit)))
    }
}

/// Waits until upkeep has ended; for ever when there is none.
pub(super) async fn kept_up(keeping_up: &mut Option<KeepingUp>) {
    match keeping_up {
        Some(keeping_up) => keeping_up.await,
        None => std::future::pending().await,
    }
}

/// Keeps the mirror up; and removes LFS objects that none of `services` needs, if there are some given.
async fn keep_up(
    builder: Builder,
    services: Option<Vec<Arc<Service>>>,
    name: RepositoryName,
    context: Context,
    permit: OwnedSemaphorePermit,
) {
    let (repository, slot) = (name.clone(), builder.mirror.clone());
    let bounds =
        UpkeepBounds { min_free: context.build.min_free_bytes, max_mirror: context.upstreams.max_mirror.as_u64() };
    let commits = context.publisher.commits(&name).await;
    let job = Job::begin("upkeep", &context.threads, move |stop| {
        // Others have their turn when this ends, whatever the agent does at that time.
        let _permit = permit;
        let failed = |error: &dyn std::fmt::Display| MaintenanceError::Local(error.to_string());
        let mirror = builder.mirror.get().map_err(|error| failed(&error))?;
        let kept = || {
            let commits = commits.as_ref().map_err(|error| failed(error))?;
            Ok(commits.iter().map(|(_, commit)| commit.clone()).collect())
        };
        let done = mirror.keep_up(kept, &bounds, SystemTime::now(), stop);
        // Also when there is no room for a repack: these objects may be what takes it.
        if let Some(services) = services
            && let Err(failure) = builder.sweep_lfs(&repository, &services, &commits, SPARED, stop)
        {
            let reason = builder.mirror.redact(&failure.reason);
            tracing::warn!(%repository, reason, "LFS objects that nothing needs are not removed");
        }
        let done = done?;
        Ok::<_, MaintenanceError>((done, mirror.size().map_err(|error| failed(&error))?))
    });
    let ended = match job {
        Ok(job) => job.await.unwrap_or_else(|fault| Err(MaintenanceError::Local(fault.to_string()))),
        Err(error) => Err(MaintenanceError::Local(format!("no thread can be started: {error}"))),
    };
    let metrics = &context.metrics;
    let count = |result| metrics.repacks.with_label_values(&[name.as_str(), result]).inc();
    match ended {
        Ok((done, MirrorSize { packs, bytes })) => {
            metrics.mirror_packs.with_label_values(&[name.as_str()]).set(i64::try_from(packs).unwrap_or(i64::MAX));
            metrics.mirror_bytes.with_label_values(&[name.as_str()]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
            match done {
                Upkeep::NotDue => {}
                Upkeep::Joined => count("joined"),
                Upkeep::Full => count("full"),
            }
            if done != Upkeep::NotDue {
                tracing::info!(repository = %name, packs, full = done == Upkeep::Full, "the mirror was repacked");
            }
        }
        Err(error) => {
            count("failed");
            match &error {
                // It may have found a pack that is damaged.
                MaintenanceError::Repack(_) => slot.trouble(Instant::now()),
                MaintenanceError::Lost(_) => slot.is_of_no_use(error.to_string()),
                _ => {}
            }
            let error = context.data_dir.redact(&error.to_string());
            tracing::warn!(repository = %name, error, "the mirror was not repacked; it is tried again, later each time");
        }
    }
}
