//! Until when this origin may fetch, publish, delete objects and vouch for what it owns.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::sleep;

use crate::boot_clock;

/// How soon after it woke up the machine knows that a session has ended: timers do not count a suspension.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The end of the own session, by [`boot_clock`]. A single origin has none. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Validity(Option<watch::Receiver<Option<Instant>>>);

impl Validity {
    /// A single origin may always act.
    pub fn always() -> Self {
        Self(None)
    }

    /// As [`Core::valid_until`](weir_ownership::Core::valid_until) says.
    pub fn of_session(until: watch::Receiver<Option<Instant>>) -> Self {
        Self(Some(until))
    }

    /// Whether this origin may act now. A process that was paused finds out here before its task does.
    pub fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|until| is_ahead(&until.borrow()))
    }

    /// Waits until the session ends, as far as this origin knows now.
    pub async fn ended(&self) {
        let Some(until) = &self.0 else { return std::future::pending().await };
        let rest = until.borrow().map_or(Duration::ZERO, |until| until.saturating_duration_since(boot_clock::now()));
        let checked = async {
            while self.holds() {
                sleep(CHECK_EVERY).await;
            }
        };
        tokio::select! {
            () = sleep(rest) => {}
            () = checked => {}
        }
    }

    /// Waits until this origin may act.
    pub async fn begun(&self) {
        let Some(until) = &self.0 else { return };
        if until.clone().wait_for(is_ahead).await.is_err() {
            // The origin is stopping.
            std::future::pending::<()>().await;
        }
    }
}

fn is_ahead(until: &Option<Instant>) -> bool {
    until.is_some_and(|until| boot_clock::now() < until)
}
