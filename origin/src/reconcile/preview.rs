//! Dry runs: lists what a service's tarball would contain, from the current mirror. The mirror is only read, concurrently
//! with the worker.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use weir_protocol::revision_id::RevisionId;
use weir_source::{ListRequest, ListTarget, PollFailure, RevisionLookup, Service, ServiceFailure, Source};
use weir_tarball::{Limits, ListedEntry, Listing, Selection};

use super::handle::Handle;
use super::job::Job;
use super::part_sources::PartSources;
use super::repository::Repository;
use super::state::Health;
use super::threads::Threads;

/// What is previewed.
pub(crate) enum PreviewTarget {
    Source(ListTarget),
    /// A composed service.
    Parts {
        service: Arc<Service>,
        /// The revision of the first page.
        at: Option<RevisionId>,
    },
}

pub(crate) struct PreviewRequest {
    pub(crate) target: PreviewTarget,
    pub(crate) selection: Selection,
    pub(crate) limits: Limits,
    /// The number of entries before the page.
    pub(crate) skip: u64,
    /// The most entries of the page.
    pub(crate) take: usize,
}

/// What a tarball would contain.
pub(crate) struct Preview {
    pub(crate) revision: RevisionId,
    /// The totals of the whole tarball.
    pub(crate) listing: Listing,
    /// The requested page.
    pub(crate) entries: Vec<ListedEntry>,
}

/// Why there is no preview.
#[derive(Debug)]
pub(crate) enum PreviewError {
    /// The repository has not been cloned yet. With the last failure, if there was one.
    NotMirrored(Option<PollFailure>),
    /// Such a service could not be published: the failed step and the reason.
    NotPublishable { step: &'static str, reason: String },
    /// It reached the deadline.
    TooSlow,
    /// It panicked, or no thread could be started.
    Failed,
}

impl Handle {
    /// Lists what a tarball would contain. It stops at the deadline, or when the future is dropped. The thread keeps `permit`
    /// until it ends.
    pub(crate) async fn preview(
        &self,
        request: PreviewRequest,
        permit: OwnedSemaphorePermit,
        deadline: Duration,
    ) -> Result<Preview, PreviewError> {
        // Read before the listing, which does not see a clone that ends meanwhile.
        let mirrored = self.state.borrow().mirrored;
        let Repository { source, threads, context, .. } = &*self.repository;
        if !source.has_content() {
            return Err(self.not_mirrored());
        }
        let (listed, part_sources) = (source.clone(), context.part_sources.clone());
        let preview = move |stop: &AtomicBool| list(&listed, &part_sources, &request, stop);
        run_until(deadline, threads, permit, preview).await?.map_err(|failure| {
            self.repository.poll_if_needed();
            // Before its first clone a mirror exists and is empty.
            if !mirrored && failure.step == "resolve" {
                return self.not_mirrored();
            }
            let reason = context.data_dir.redact(&failure.reason);
            PreviewError::NotPublishable { step: failure.step, reason }
        })
    }

    /// What is called like a revision in what is stored.
    pub(crate) async fn find_revision(&self, name: &str) -> RevisionLookup {
        let (source, name) = (self.repository.source.clone(), name.to_owned());
        tokio::task::spawn_blocking(move || source.find_revision(&name)).await.unwrap_or(RevisionLookup::Unknown)
    }

    fn not_mirrored(&self) -> PreviewError {
        PreviewError::NotMirrored(match &self.state.borrow().health {
            Health::Unhealthy { failure, .. } => Some(failure.clone()),
            Health::Unknown | Health::Healthy { .. } => None,
        })
    }
}

fn list(
    source: &Source,
    part_sources: &PartSources,
    request: &PreviewRequest,
    stop: &AtomicBool,
) -> Result<Preview, ServiceFailure> {
    let PreviewRequest { target, selection, limits, skip, take } = request;
    let (mut listed, mut entries) = (0, Vec::new());
    let mut emit = |entry| {
        if listed >= *skip && entries.len() < *take {
            entries.push(entry);
        }
        listed += 1;
    };
    let (revision, listing) = match target {
        PreviewTarget::Source(target) => source.list(&ListRequest { target, selection, limits }, stop, &mut emit)?,
        PreviewTarget::Parts { service, at } => part_sources.list(service, at.as_ref(), limits, stop, &mut emit)?,
    };
    Ok(Preview { revision, listing, entries })
}

/// Runs blocking work on its own thread, which keeps `permit` until it ends, also after the deadline.
async fn run_until<T: Send + 'static>(
    deadline: Duration,
    threads: &Threads,
    permit: OwnedSemaphorePermit,
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
) -> Result<T, PreviewError> {
    let job = Job::start("dry run", threads, move |stop| {
        let _permit = permit;
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
    use std::sync::atomic::Ordering;
    use std::sync::mpsc;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn work_past_its_deadline_is_signalled_to_stop_and_keeps_its_permit_until_it_ends() {
        let (threads, permits) = (Threads::default(), Arc::new(Semaphore::new(1)));
        let permit = permits.clone().try_acquire_owned().unwrap();
        let (finish, finished) = mpsc::channel::<()>();
        let work = move |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let _ = finished.recv();
        };
        let result = run_until(Duration::from_millis(1), &threads, permit, work).await;
        assert!(matches!(result, Err(PreviewError::TooSlow)));
        assert_eq!((permits.available_permits(), threads.count()), (0, 1));
        drop(finish);
        threads.all_ended().await;
        assert_eq!(permits.available_permits(), 1);
    }
}
