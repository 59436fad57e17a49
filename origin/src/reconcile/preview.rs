//! What a service's tarball would hold, by what the mirror holds now. The mirror is only read, beside whatever the agent
//! does.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use weir_protocol::commit_id::CommitId;

use super::handle::Handle;
use super::job::Job;
use super::state::{Failure, Health};
use super::threads::Threads;
use crate::source::{At, ListRequest, ServiceFailure, Source};
use crate::tarball::{Limits, Listed, Listing, Selection};

/// What is wanted of a preview.
pub(crate) struct Wanted {
    pub(crate) at: At,
    pub(crate) selection: Selection,
    pub(crate) limits: Limits,
    /// Entries that are passed over.
    pub(crate) skip: u64,
    /// The most entries that are named after them.
    pub(crate) take: usize,
}

/// What a tarball would hold.
pub(crate) struct Preview {
    pub(crate) commit: CommitId,
    /// All of it.
    pub(crate) listing: Listing,
    /// The entries that were wanted.
    pub(crate) named: Vec<Listed>,
}

/// There is no preview.
#[derive(Debug)]
pub(crate) enum PreviewError {
    /// The repository has not been cloned yet; with the failure of the last try, if there was one.
    NotMirrored(Option<Failure>),
    /// Nothing could be published: where, and why.
    NotPublishable { step: &'static str, reason: String },
    /// It took longer than it may.
    TooSlow,
    /// The program has a fault, or is about to end.
    Failed,
}

impl Handle {
    /// What a tarball would hold. Whoever drops this ends it, and so does the deadline; `place` is held until its thread
    /// has ended.
    pub(crate) async fn preview(
        &self,
        wanted: Wanted,
        place: OwnedSemaphorePermit,
        deadline: Duration,
    ) -> Result<Preview, PreviewError> {
        // Before the look: what is cloned meanwhile was not there for it.
        let mirrored = self.state.borrow().mirrored;
        if !self.source.holds_anything() {
            return Err(self.not_mirrored());
        }
        let source = self.source.clone();
        let looked = in_time(&self.threads, place, deadline, move |stop| look(&source, &wanted, stop)).await?;
        looked.map_err(|failure| {
            // A mirror stands there, empty, before its first clone: what it lacks says nothing of the upstream.
            if !mirrored && failure.step == "resolve" {
                return self.not_mirrored();
            }
            let reason = self.data_dir.redact(&failure.reason);
            PreviewError::NotPublishable { step: failure.step, reason }
        })
    }

    fn not_mirrored(&self) -> PreviewError {
        PreviewError::NotMirrored(match &self.state.borrow().health {
            Health::Unhealthy { failure, .. } => Some(failure.clone()),
            Health::Unknown | Health::Healthy { .. } => None,
        })
    }
}

fn look(source: &Source, wanted: &Wanted, stop: &AtomicBool) -> Result<Preview, ServiceFailure> {
    let (mut seen, mut named) = (0, Vec::new());
    let request = ListRequest { at: &wanted.at, selection: &wanted.selection, limits: &wanted.limits };
    let (commit, listing) = source.list(&request, stop, &mut |listed| {
        if seen >= wanted.skip && named.len() < wanted.take {
            named.push(listed);
        }
        seen += 1;
    })?;
    Ok(Preview { commit, listing, named })
}

/// Does work on a thread of its own, which holds `place` until it ends: whoever comes in its stead would be one too many.
async fn in_time<T: Send + 'static>(
    threads: &Threads,
    place: OwnedSemaphorePermit,
    deadline: Duration,
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
) -> Result<T, PreviewError> {
    let job = Job::begin("dry run", threads, move |stop| {
        let _place = place;
        work(stop)
    });
    let job = job.map_err(|error| {
        tracing::warn!(%error, "no thread can be started for a dry run");
        PreviewError::Failed
    })?;
    match tokio::time::timeout(deadline, job).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err(PreviewError::Failed),
        Err(_) => Err(PreviewError::TooSlow),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn at_its_deadline_work_is_told_to_stop_and_keeps_its_place_until_it_has() {
        let (threads, places) = (Threads::default(), Arc::new(Semaphore::new(1)));
        let place = places.clone().try_acquire_owned().unwrap();
        let (go_on, waits) = mpsc::channel::<()>();
        let work = move |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            // It was told, and does not come back at once.
            let _ = waits.recv();
        };
        let ended = in_time(&threads, place, Duration::from_millis(1), work).await;
        assert!(matches!(ended, Err(PreviewError::TooSlow)));
        assert_eq!((places.available_permits(), threads.count()), (0, 1));
        drop(go_on);
        threads.ended().await;
        assert_eq!(places.available_permits(), 1);
    }
}
