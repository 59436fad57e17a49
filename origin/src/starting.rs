//! An origin that has not started yet: what it waits for is on its admin listener, and in the log.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus::Registry;
use prometheus::proto::MetricFamily;
use serde_json::Value;
use weir_protocol::name::NodeName;
use weir_runtime::admin::{Admin, Readiness, StatusDocument, Summary as Summarized};
use weir_runtime::operator_token::OperatorToken;
use weir_runtime::page::Page;
use weir_runtime::shutdown::Drain;

use crate::status;

/// The pauses before the store is requested again. The last one is used from then on.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];

/// The start of an origin. Clones share it.
#[derive(Clone)]
pub(crate) struct Starting {
    name: NodeName,
    begun: SystemTime,
    waits_for: Arc<Mutex<String>>,
    /// What the admin listener shows once the origin has started.
    started: Arc<OnceLock<Shown>>,
}

/// Adds to the head of `/status`, with the metrics of now.
type Summary = Box<dyn Fn(Value, &[MetricFamily]) -> Value + Send + Sync>;

/// The document of `/status`, with the page that a query wants.
type Status = Box<dyn Fn(Readiness, &str) -> StatusDocument + Send + Sync>;

/// What an origin says of itself.
pub(crate) struct Shown {
    pub(crate) summary: Summary,
    pub(crate) ready: Box<dyn Fn() -> Readiness + Send + Sync>,
    pub(crate) status: Status,
}

impl Starting {
    pub(crate) fn new(name: NodeName, begun: SystemTime) -> Self {
        Self { name, begun, waits_for: Arc::default(), started: Arc::default() }
    }

    /// The admin listener: of the start, and then of what has started.
    pub(crate) fn admin(&self, registry: Registry, metrics_token: Option<Arc<OperatorToken>>, drain: &Drain) -> Admin {
        let (ready, status, summary) = (self.clone(), self.clone(), self.clone());
        let (ready, status) = (Arc::new(move || ready.readiness()), Arc::new(move |query: &str| status.status(query)));
        let gathered = registry.clone();
        let page = Page::new("origin", include_str!("page/origin.html"), include_str!("page/origin.js"));
        let page: (Page, Summarized) = (page, Arc::new(move || summary.summary(&gathered)));
        Admin { registry, ready, status, page: Some(page), metrics_token, drain: drain.clone() }
    }

    /// The origin has started.
    pub(crate) fn ends(&self, shown: Shown) {
        // It starts once.
        let _ = self.started.set(shown);
    }

    /// Sends a request to the store until it is answered: a store that is slow or away for a while ends no start. Other errors
    /// would come again.
    pub(crate) async fn until_answered<T, E: Display>(
        &self,
        is_unavailable: impl Fn(&E) -> bool,
        mut request: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut pauses = PAUSES.iter();
        let mut pause = Duration::ZERO;
        loop {
            match request().await {
                Err(error) if is_unavailable(&error) => self.wait_for(error.to_string()),
                known => {
                    self.waits_for().clear();
                    return known;
                }
            }
            pause = pauses.next().copied().unwrap_or(pause);
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        }
    }

    /// Logs each reason once.
    fn wait_for(&self, error: String) {
        if *self.waits_for() != error {
            tracing::warn!(error, "the store does not answer: the origin waits for it, and is not ready until then");
            *self.waits_for() = error;
        }
    }

    fn readiness(&self) -> Readiness {
        let starting = || match &*self.waits_for() {
            none if none.is_empty() => "the origin is starting".to_owned(),
            error => format!("the origin is starting, and the store does not answer: {error}"),
        };
        self.started.get().map_or_else(|| Readiness::NotReady(vec![starting()]), |shown| (shown.ready)())
    }

    fn status(&self, query: &str) -> StatusDocument {
        let readiness = self.readiness();
        if let Some(shown) = self.started.get() {
            return (shown.status)(readiness, query);
        }
        Ok(status::head(&self.name, self.begun, readiness))
    }

    fn summary(&self, registry: &Registry) -> Value {
        let head = status::head(&self.name, self.begun, self.readiness());
        match self.started.get() {
            Some(shown) => (shown.summary)(head, &registry.gather()),
            None => head,
        }
    }

    fn waits_for(&self) -> MutexGuard<'_, String> {
        self.waits_for.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_is_requested_again_and_nothing_else_is() {
        let starting = Starting::new("origin-1".parse().unwrap(), SystemTime::UNIX_EPOCH);
        for (found, requests, result) in [
            (vec![Ok(1)], 1, Ok(1)),
            ((0..9).map(|_| Err("no answer")).chain([Ok(3)]).collect(), 10, Ok(3)),
            (vec![Err("no answer"), Err("two winners"), Ok(3)], 2, Err("two winners")),
        ] {
            let (mut answers, mut sent) = (found.into_iter(), 0);
            let ended = starting
                .until_answered(
                    |error| *error == "no answer",
                    async || {
                        sent += 1;
                        let answer = answers.next().unwrap();
                        if sent > 1 {
                            let Readiness::NotReady(reasons) = starting.readiness() else { panic!("it is ready") };
                            assert!(reasons[0].ends_with("no answer"), "{reasons:?}");
                        }
                        answer
                    },
                )
                .await;
            assert_eq!((ended, sent), (result, requests));
            assert_eq!(starting.readiness(), Readiness::NotReady(vec!["the origin is starting".to_owned()]));
        }
        let ready = Box::new(|| Readiness::Ready);
        starting.ends(Shown {
            ready,
            status: Box::new(|readiness, _| Ok(json!({ "ready": readiness == Readiness::Ready }))),
            summary: Box::new(|head, _| head),
        });
        assert_eq!((starting.readiness(), starting.status("").unwrap()), (Readiness::Ready, json!({ "ready": true })));
    }
}
