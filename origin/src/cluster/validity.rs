//! Until when this origin may fetch, publish, delete objects and vouch for what it owns.

use std::time::Instant;

use tokio::sync::watch;

/// The end of the own session. A single origin has none. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct Validity(Option<watch::Receiver<Option<Instant>>>);

impl Validity {
    /// A single origin may always act.
    pub(crate) fn always() -> Self {
        Self(None)
    }

    /// As [`Core::valid_until`](crate::ownership::Core::valid_until) says.
    pub(crate) fn of_session(until: watch::Receiver<Option<Instant>>) -> Self {
        Self(Some(until))
    }

    /// Whether this origin may act now. A process that was paused finds out here before its task does.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        self.0.as_ref().is_none_or(|until| until.borrow().is_some_and(|until| now < until))
    }

    /// Until when this origin may act, as far as it knows now. `None`: always.
    pub(crate) fn until(&self) -> Option<Instant> {
        let until = self.0.as_ref()?;
        Some(until.borrow().unwrap_or_else(Instant::now))
    }

    /// Waits until this origin may act.
    pub(crate) async fn begun(&self) {
        let Some(until) = &self.0 else { return };
        let is_valid = |until: &Option<Instant>| until.is_some_and(|until| Instant::now() < until);
        if until.clone().wait_for(is_valid).await.is_err() {
            // The origin is stopping.
            std::future::pending::<()>().await;
        }
    }
}
