//! Until when this origin may fetch, publish, delete objects and vouch for what it owns.

use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

/// The end of a session, by both clocks of the machine: the monotonic one stops while the machine is suspended, and the wall
/// clock can be set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionEnd {
    monotonic: Instant,
    wall: SystemTime,
}

impl SessionEnd {
    /// So long after both times, which were read together.
    pub(crate) fn after(validity: Duration, (monotonic, wall): (Instant, SystemTime)) -> Self {
        Self { monotonic: monotonic + validity, wall: wall + validity }
    }

    pub(crate) fn monotonic(self) -> Instant {
        self.monotonic
    }

    pub(crate) fn wall(self) -> SystemTime {
        self.wall
    }

    /// Whether it is still to come by both clocks.
    fn is_ahead(self, (monotonic, wall): (Instant, SystemTime)) -> bool {
        monotonic < self.monotonic && wall < self.wall
    }
}

/// The end of the own session. A single origin has none. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct Validity(Option<watch::Receiver<Option<SessionEnd>>>);

impl Validity {
    /// A single origin may always act.
    pub(crate) fn always() -> Self {
        Self(None)
    }

    /// As [`Core::valid_until`](crate::ownership::Core::valid_until) says.
    pub(crate) fn of_session(end: watch::Receiver<Option<SessionEnd>>) -> Self {
        Self(Some(end))
    }

    /// Whether this origin may act now. A process that was paused finds out here before its task does.
    pub(crate) fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|end| is_valid(&end.borrow()))
    }

    /// Until when this origin may act, as far as it knows now. `None`: always.
    pub(crate) fn until(&self) -> Option<Instant> {
        let end = self.0.as_ref()?.borrow().filter(|end| is_valid(&Some(*end)));
        Some(end.map_or_else(Instant::now, |end| end.monotonic))
    }

    /// Waits until this origin may act.
    pub(crate) async fn begun(&self) {
        let Some(end) = &self.0 else { return };
        if end.clone().wait_for(is_valid).await.is_err() {
            // The origin is stopping.
            std::future::pending::<()>().await;
        }
    }
}

fn is_valid(end: &Option<SessionEnd>) -> bool {
    end.is_some_and(|end| end.is_ahead((Instant::now(), SystemTime::now())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_session_ends_by_either_clock() {
        let (monotonic, wall) = (Instant::now(), SystemTime::now());
        let end = SessionEnd::after(27 * SECOND, (monotonic, wall));
        assert!(end.is_ahead((monotonic + 26 * SECOND, wall + 26 * SECOND)));
        assert!(!end.is_ahead((monotonic + 27 * SECOND, wall)), "the wall clock was set back");
        assert!(!end.is_ahead((monotonic + SECOND, wall + 3600 * SECOND)), "the machine was suspended for an hour");
        let (sender, receiver) = watch::channel(None);
        let validity = Validity::of_session(receiver);
        assert!(!validity.holds());
        sender.send_replace(Some(SessionEnd::after(3600 * SECOND, (monotonic, wall))));
        assert!(validity.holds() && validity.until() > Some(monotonic + SECOND));
        sender.send_replace(Some(SessionEnd::after(3600 * SECOND, (monotonic, wall - 7200 * SECOND))));
        assert!(!validity.holds() && validity.until() <= Some(Instant::now()), "nothing may be deleted any more");
    }
}
