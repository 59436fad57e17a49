//! What is known of a repository from outside: a value that is replaced as it changes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use weir_protocol::name::ServiceName;

use crate::source::FetchSnapshot;

/// How a repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryState {
    /// What its agent does just now.
    pub phase: Phase,
    /// Whether the upstream answers.
    pub health: Health,
    /// Whether the mirror holds what the upstream held at some time.
    pub mirrored: bool,
    /// Polls that ended since the start.
    pub polls: u64,
    /// Polls since the start that ended with everything that followed from them; but LFS objects may be on their way still.
    /// Others know these as polls.
    pub attempts: u64,
    /// The services whose tarballs are being built.
    pub building: Vec<ServiceName>,
    /// Polls that failed since the last that did not.
    pub consecutive_failures: u32,
    /// When the upstream last answered.
    pub last_success: Option<SystemTime>,
    /// When it is asked next, as far as is known.
    pub next_poll: Option<SystemTime>,
    /// Until when the upstream asked to be left alone.
    pub held_until: Option<SystemTime>,
    /// What the poll that is due waits for, when it cannot begin.
    pub waits_for: Option<WaitsFor>,
    /// The LFS objects that are wanted and not here; none: there are no such.
    pub lfs: Option<LfsState>,
}

/// LFS objects that are wanted and not here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LfsState {
    /// The services that wait for them, and since when.
    pub services: Arc<[(ServiceName, SystemTime)]>,
    /// How many objects.
    pub objects: usize,
    /// Whether an attempt to fetch them is under way.
    pub fetching: bool,
    /// What the attempt waits for, when it cannot begin.
    pub waits_for: Option<WaitsFor>,
    /// Why some of them could not be had so far.
    pub failure: Option<LfsFailure>,
    /// When the next attempt is due.
    pub next_attempt: Option<SystemTime>,
    /// Until when the server asked to be left alone.
    pub held_until: Option<SystemTime>,
}

/// Why an LFS object could not be had: of several, the one that is missing for the longest time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LfsFailure {
    /// When it could not be had for the first time.
    pub since: SystemTime,
    /// What went wrong the last time, in plain words.
    pub reason: String,
    /// Attempts in a row that did not bring it.
    pub attempts: u32,
}

/// What a poll, or an attempt to fetch LFS objects, may have to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// As many repositories of its host list their refs, or fetch, as may at a time.
    HostPlace,
    /// Its host was asked as often as it may be in a minute.
    HostBudget,
    /// As many repositories list their refs, or fetch, as may at a time.
    Place,
    /// As many repositories are cloned for the first time as may at a time, in all or of its host.
    LargePlace,
    /// Files of LFS are fetched for as many repositories as may be at a time, in all or of its host.
    LfsPlace,
}

impl WaitsFor {
    /// The word for `/status` and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostPlace => "host_permit",
            Self::HostBudget => "host_budget",
            Self::Place => "permit",
            Self::LargePlace => "large_permit",
            Self::LfsPlace => "lfs_permit",
        }
    }
}

/// How far the poll of a repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It waits for the next poll.
    Idle,
    /// It reads the mirror, which gave trouble, in full, before the next poll.
    Examining,
    /// It fetches the repository for the first time.
    Cloning {
        /// How far it is.
        progress: FetchSnapshot,
    },
    /// It asks what moved, and fetches that.
    Polling {
        /// How far it is.
        progress: FetchSnapshot,
    },
    /// A poll's deadline has passed; it was told to stop and has not come back.
    Overdue,
}

impl Phase {
    /// The word for `/status`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Examining => "examining",
            Phase::Cloning { .. } => "cloning",
            Phase::Polling { .. } => "polling",
            Phase::Overdue => "overdue",
        }
    }
}

/// Whether a repository's upstream answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It was not asked since the start.
    Unknown,
    /// It does.
    Healthy {
        /// Since when without a failure.
        since: SystemTime,
    },
    /// It does not.
    Unhealthy {
        /// Since when without a success.
        since: SystemTime,
        /// The last failure.
        failure: Failure,
    },
}

/// Why a poll failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Where: `connect`, `authenticate`, `list refs`, `fetch`, `write`.
    pub step: &'static str,
    /// In plain words, without credentials or the user info of a URL.
    pub reason: String,
    /// Whether it took too long, rather than that something answered with an error.
    pub timeout: bool,
    /// How long the upstream asks to be left alone (`Retry-After`), from the end of the poll; a day at the most.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// Whether it says what another one says; a pause that counts down is no news.
    fn says_as(&self, other: &Self) -> bool {
        (self.step, &self.reason) == (other.step, &other.reason)
    }
}

impl RepositoryState {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            health: Health::Unknown,
            mirrored: false,
            polls: 0,
            attempts: 0,
            building: Vec::new(),
            consecutive_failures: 0,
            last_success: None,
            next_poll: None,
            held_until: None,
            waits_for: None,
            lfs: None,
        }
    }

    /// The upstream answered, and all of it is followed but a ref that is `astray`. True when that is news.
    pub(super) fn poll_succeeded(&mut self, astray: Option<Failure>, now: SystemTime) -> bool {
        self.mirrored = true;
        self.consecutive_failures = 0;
        self.last_success = Some(now);
        if let Some(failure) = astray {
            return self.says_unhealthy(failure, now);
        }
        if !matches!(self.health, Health::Healthy { .. }) {
            self.health = Health::Healthy { since: now };
        }
        false
    }

    /// A poll failed. True when that is news: it worked before, or the reason is another.
    pub(super) fn poll_failed(&mut self, failure: Failure, now: SystemTime) -> bool {
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        self.says_unhealthy(failure, now)
    }

    /// The upstream is found unhealthy, while its poll may still be under way.
    pub(super) fn says_unhealthy(&mut self, failure: Failure, now: SystemTime) -> bool {
        let (since, news) = match &self.health {
            Health::Unhealthy { since, failure: known } => (*since, !known.says_as(&failure)),
            _ => (now, true),
        };
        self.health = Health::Unhealthy { since, failure };
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn failure(reason: &str) -> Failure {
        Failure { step: "connect", reason: reason.to_owned(), timeout: false, retry_after: None }
    }

    #[test]
    fn since_is_the_first_of_a_row_and_only_a_change_is_news() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let mut state = RepositoryState::new();
        assert!(state.poll_failed(failure("refused"), at(1)));
        assert!(!state.poll_failed(failure("refused"), at(2)));
        let later = Failure { retry_after: Some(Duration::from_secs(9)), ..failure("refused") };
        assert!(!state.poll_failed(later, at(2)));
        assert!(state.poll_failed(failure("no route"), at(3)));
        assert_eq!(state.health, Health::Unhealthy { since: at(1), failure: failure("no route") });
        assert_eq!((state.consecutive_failures, state.mirrored), (4, false));

        assert!(state.poll_succeeded(Some(failure("a tag")), at(4)));
        assert!(!state.poll_succeeded(Some(failure("a tag")), at(4)));
        assert_eq!(state.health, Health::Unhealthy { since: at(1), failure: failure("a tag") });
        assert!(state.mirrored && state.consecutive_failures == 0);

        state.poll_succeeded(None, at(4));
        state.poll_succeeded(None, at(5));
        assert_eq!(state.health, Health::Healthy { since: at(4) });
        assert_eq!((state.consecutive_failures, state.last_success), (0, Some(at(5))));
    }
}
