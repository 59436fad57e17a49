//! Steps that are being stored. None waits for another one.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weir_protocol::name::ServiceName;

/// The pause after a step that could not be stored.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The steps of services, at most one of each.
#[derive(Default)]
pub(super) struct Steps {
    /// Each with when it failed, if it could not be stored.
    tasks: JoinSet<(ServiceName, Option<Instant>)>,
    running: BTreeSet<ServiceName>,
    /// When one could not be stored.
    failed: BTreeMap<ServiceName, Instant>,
}

impl Steps {
    /// Begins a step, if the one before it is over, and did not fail a short time ago. `step`: whether it could be stored.
    pub(super) fn begin(&mut self, service: &ServiceName, step: impl Future<Output = bool> + Send + 'static) {
        self.collect();
        let has_failed = self.failed.get(service).is_some_and(|failed| failed.elapsed() < RETRY_AFTER);
        if has_failed || !self.running.insert(service.clone()) {
            return;
        }
        let name = service.clone();
        self.tasks.spawn(async move {
            let done = AssertUnwindSafe(step).catch_unwind().await;
            if done.is_err() {
                tracing::error!(service = %name, "a step of the rollout has panicked; it is tried again");
            }
            (name, (!done.unwrap_or(false)).then(Instant::now))
        });
    }

    /// Forgets the failures of other services.
    pub(super) fn retain(&mut self, services: &BTreeSet<ServiceName>) {
        self.collect();
        self.failed.retain(|service, _| services.contains(service));
    }

    fn collect(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            let Ok((service, failed)) = ended else { continue };
            self.running.remove(&service);
            match failed {
                Some(at) => self.failed.insert(service, at),
                None => self.failed.remove(&service),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Begins a step that counts itself. Returns after it had the chance to end.
    async fn count(steps: &mut Steps, service: &str, is_stored: bool, counter: &Arc<AtomicUsize>) {
        let counter = counter.clone();
        let step = async move {
            counter.fetch_add(1, Ordering::SeqCst);
            is_stored
        };
        steps.begin(&service.parse().unwrap(), step);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_waits_for_its_store_holds_up_no_other_service() {
        let (mut steps, done) = (Steps::default(), Arc::new(AtomicUsize::new(0)));
        let (release, held) = tokio::sync::oneshot::channel::<()>();
        steps.begin(&"slow".parse().unwrap(), async move { held.await.is_ok() });
        for expected in 1..4 {
            count(&mut steps, "shop", true, &done).await;
            count(&mut steps, "slow", true, &done).await;
            assert_eq!(done.load(Ordering::SeqCst), expected, "one step of a service at a time");
        }
        release.send(()).unwrap();
        tokio::task::yield_now().await;
        count(&mut steps, "slow", true, &done).await;
        assert_eq!(done.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_panicked_is_tried_again() {
        let (mut steps, tried) = (Steps::default(), Arc::new(AtomicUsize::new(0)));
        steps.begin(&"shop".parse().unwrap(), async { panic!("as a test") });
        tokio::task::yield_now().await;
        steps.retain(&BTreeSet::from(["shop".parse().unwrap()]));
        tokio::time::advance(RETRY_AFTER).await;
        count(&mut steps, "shop", true, &tried).await;
        assert_eq!(tried.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_failed_is_tried_again_after_a_pause() {
        let (mut steps, tried) = (Steps::default(), Arc::new(AtomicUsize::new(0)));
        for (pause, expected) in [(0, 1), (2, 1), (RETRY_AFTER.as_secs(), 2), (2, 2)] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            count(&mut steps, "shop", false, &tried).await;
            assert_eq!(tried.load(Ordering::SeqCst), expected, "after {pause} s");
        }
        // Another rollout of the service does not wait for it.
        steps.retain(&BTreeSet::new());
        count(&mut steps, "shop", true, &tried).await;
        count(&mut steps, "shop", true, &tried).await;
        assert_eq!(tried.load(Ordering::SeqCst), 4);
    }
}
