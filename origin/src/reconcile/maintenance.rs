//! Upkeep of the mirror: after a poll that brought something, or a day. Polls and builds go on beside it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use weir_protocol::commit_id::CommitId;
use weir_protocol::name::ServiceName;

use super::context::Context;
use super::job::Job;
use super::poll::Poller;
use super::worker::Worker;
use crate::service::Service;
use crate::source::MaintenanceRequest;

/// A mirror is looked after so often though nothing is fetched: what was left behind before goes by time.
const LOOK_EVERY: Duration = Duration::from_secs(24 * 3600);

/// How often it is looked what is needed still. Versions go by age, and nothing tells when. It is looked, whatever else there
/// is to do, after a start and when the services have changed.
const SWEEP_EVERY: Duration = Duration::from_secs(24 * 3600);

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
        let sweep_lfs =
            self.state.borrow().mirrored && self.lfs_swept.is_none_or(|last| now.duration_since(last) >= SWEEP_EVERY);
        if !self.upkeep_due && !long_ago && !sweep_lfs {
            return None;
        }
        let permit = self.context.upkeep.clone().try_acquire_owned().ok()?;
        self.upkeep_due = false;
        self.looked_after = Some(now);
        if sweep_lfs {
            self.lfs_swept = Some(now);
        }
        let services = sweep_lfs.then(|| self.services.values().cloned().collect());
        let in_work = self.running.values().map(|running| &running.candidate);
        let in_work = in_work.chain(&self.to_decide).chain(&self.decided_on);
        let in_work = in_work.map(|candidate| (candidate.service.name.clone(), candidate.commit.clone())).collect();
        Some(Box::pin(keep_up(self.poller.clone(), services, in_work, self.context.clone(), permit)))
    }
}

/// Waits until upkeep has ended; for ever when there is none.
pub(super) async fn kept_up(keeping_up: &mut Option<KeepingUp>) {
    match keeping_up {
        Some(keeping_up) => keeping_up.await,
        None => std::future::pending().await,
    }
}

/// Keeps the mirror up, with what is published and `in_work`; and removes LFS objects that none of `services` needs, if
/// there are some given.
async fn keep_up(
    poller: Arc<Poller>,
    services: Option<Vec<Arc<Service>>>,
    in_work: Vec<(ServiceName, CommitId)>,
    context: Arc<Context>,
    permit: OwnedSemaphorePermit,
) {
    let (source, mut published) = (poller.source.clone(), context.publisher.commits(&poller.name).await);
    published.iter_mut().for_each(|published| published.extend_from_slice(&in_work));
    let job = Job::start("upkeep", &context.threads, move |stop| {
        // Others have their turn when this ends, whatever the agent does at that time.
        let _permit = permit;
        source.maintain(&MaintenanceRequest { published: &published, sweep: services.as_deref() }, stop);
    });
    match job {
        Ok(job) => {
            if let Err(fault) = job.await {
                poller.source.maintenance_failed(&fault.to_string());
            }
        }
        Err(error) => poller.source.maintenance_failed(&format!("no thread can be started: {error}")),
    }
}
