//! The observable state of a repository.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;
use weir_source::{LeftOutRef, PollFailure};
use weir_upstream::FetchSnapshot;

/// The state of a repository, for `/status`, metrics and tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryState {
    /// What its worker is doing.
    pub phase: Phase,
    /// Whether the upstream can be polled.
    pub health: Health,
    /// Whether the mirror has been cloned completely.
    pub mirrored: bool,
    /// When the first poll since the start began, with its wait for permits.
    pub first_poll: Option<Instant>,
    /// Polls that have ended since the start.
    pub polls: u64,
    /// Polls since the start whose result was applied to all services, except that LFS objects may still be fetched.
    /// `/status` shows these as `polls`.
    pub applied_polls: u64,
    /// The services whose tarballs are being built, and since when.
    pub building: Vec<(ServiceName, SystemTime)>,
    /// Failed polls since the last successful one.
    pub consecutive_failures: u32,
    /// When a poll last succeeded.
    pub last_success: Option<SystemTime>,
    /// When the next poll is due. `None` during a poll.
    pub next_poll: Option<SystemTime>,
    /// The end of the upstream's `Retry-After`.
    pub held_until: Option<SystemTime>,
    /// What a due poll waits for.
    pub waits_for: Option<WaitsFor>,
    /// The missing LFS objects. `None`: none are missing.
    pub lfs: Option<LfsState>,
    /// The upstream's refs that the last successful poll left out; the first 20.
    pub left_out: Arc<[LeftOutRef]>,
    /// The services whose ref is at an older revision that is not published yet.
    pub stepping_back: Arc<[SteppingBack]>,
}

/// The most refs that are shown as left out.
pub(crate) const MAX_SHOWN_REFS: usize = 20;

/// The missing LFS objects of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LfsState {
    /// The services that wait for objects, and since when.
    pub services: Arc<[(ServiceName, SystemTime)]>,
    /// The number of missing objects.
    pub objects: usize,
    /// Whether objects are being fetched.
    pub fetching: bool,
    /// What a due fetch waits for.
    pub waits_for: Option<WaitsFor>,
    /// The last failure.
    pub failure: Option<LfsFailure>,
    /// When the next fetch is due.
    pub next_attempt: Option<SystemTime>,
    /// The end of the server's `Retry-After`.
    pub held_until: Option<SystemTime>,
}

/// Why LFS objects could not be fetched. Of several failures, the oldest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LfsFailure {
    /// When the first attempt failed.
    pub since: SystemTime,
    /// Why the last attempt failed, for operators.
    pub reason: String,
    /// Consecutive failed attempts.
    pub attempts: u32,
}

/// What a poll or an LFS fetch waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// A permit of its host to list refs or to fetch.
    HostPermit,
    /// The request budget of its host.
    HostBudget,
    /// A permit to list refs or to fetch.
    Permit,
    /// A permit for a first clone, of its host or among all.
    LargePermit,
    /// A permit for an LFS fetch, of its host or among all.
    LfsPermit,
}

impl WaitsFor {
    /// The value in `/status` and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostPermit => "host_permit",
            Self::HostBudget => "host_budget",
            Self::Permit => "permit",
            Self::LargePermit => "large_permit",
            Self::LfsPermit => "lfs_permit",
        }
    }
}

/// An older revision that a service may follow again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SteppingBack {
    /// The service.
    pub service: ServiceName,
    /// The older revision.
    pub revision_id: RevisionId,
    /// Its version, if its source names it by one.
    pub version: Option<SourceVersion>,
    /// Why it is older, for operators.
    pub reason: String,
    /// When it was found.
    pub since: SystemTime,
    /// When it is published, if every poll until then confirms it.
    pub until: SystemTime,
}

/// What the worker of a repository is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the next poll.
    Idle,
    /// Checking a mirror that may be damaged, before the next poll.
    Examining,
    /// Fetching the repository for the first time.
    Fetching {
        /// The progress of the fetch.
        progress: FetchSnapshot,
    },
    /// Listing the refs of the upstream, and fetching changes.
    Polling {
        /// The progress of the fetch.
        progress: FetchSnapshot,
    },
    /// Waiting for a poll that was signalled to stop at its deadline.
    Overdue,
}

impl Phase {
    /// The value in `/status`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Examining => "examining",
            Phase::Fetching { .. } => "fetching",
            Phase::Polling { .. } => "polling",
            Phase::Overdue => "overdue",
        }
    }
}

/// Whether the upstream of a repository can be polled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Not polled since the start.
    Unknown,
    /// The last poll succeeded.
    Healthy {
        /// When the first of the successful polls ended.
        since: SystemTime,
    },
    /// The last poll failed, at least in part.
    Unhealthy {
        /// When the first of the failed polls ended.
        since: SystemTime,
        /// The last failure.
        failure: PollFailure,
    },
}

impl Health {
    /// The value in `/status`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Health::Unknown => "unknown",
            Health::Healthy { .. } => "healthy",
            Health::Unhealthy { .. } => "unhealthy",
        }
    }
}

/// The longest time that a first poll, and what it publishes, keep the origin unready. An upstream that sends a byte now and then
/// could do so for all of `poll_timeout`.
const FIRST_POLL_WAIT: Duration = Duration::from_secs(60);

impl RepositoryState {
    /// Whether the origin waits for the first poll before it is ready.
    pub(crate) fn delays_readiness(&self, now: Instant) -> bool {
        let is_slow = |began| now.saturating_duration_since(began) >= FIRST_POLL_WAIT;
        self.applied_polls == 0
            && !matches!(self.health, Health::Unhealthy { .. })
            && !self.first_poll.is_some_and(is_slow)
    }

    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            health: Health::Unknown,
            mirrored: false,
            first_poll: None,
            polls: 0,
            applied_polls: 0,
            building: Vec::new(),
            consecutive_failures: 0,
            last_success: None,
            next_poll: None,
            held_until: None,
            waits_for: None,
            lfs: None,
            left_out: Arc::default(),
            stepping_back: Arc::default(),
        }
    }

    /// A poll succeeded, but left out some refs. If a service follows one of them, that is a failure.
    pub(super) fn poll_succeeded(&mut self, mut left_out: Vec<LeftOutRef>, now: SystemTime) {
        self.mirrored = true;
        self.consecutive_failures = 0;
        self.last_success = Some(now);
        left_out.sort_by_key(|each| !each.is_followed);
        if let Some(LeftOutRef { failure, .. }) = left_out.first().filter(|first| first.is_followed) {
            // The poll had an answer in time: what the ref's attempt met says nothing of the next poll.
            self.mark_unhealthy(PollFailure { timeout: false, retry_after: None, ..failure.clone() }, now);
        } else if !matches!(self.health, Health::Healthy { .. }) {
            self.health = Health::Healthy { since: now };
        }
        left_out.truncate(MAX_SHOWN_REFS);
        self.left_out = left_out.into();
    }

    /// A poll failed. Returns true if that is a new failure.
    pub(super) fn poll_failed(&mut self, failure: PollFailure, now: SystemTime) -> bool {
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        self.mark_unhealthy(failure, now)
    }

    /// Records a failure, maybe while the poll is still running. Returns true if it is new.
    pub(super) fn mark_unhealthy(&mut self, failure: PollFailure, now: SystemTime) -> bool {
        let (since, is_new) = match &self.health {
            // A `Retry-After` that counts down is not a new cause.
            Health::Unhealthy { since, failure: known } => {
                (*since, (known.step, &known.reason) != (failure.step, &failure.reason))
            }
            _ => (now, true),
        };
        self.health = Health::Unhealthy { since, failure };
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn failure(reason: &str) -> PollFailure {
        PollFailure::new("connect", "connect", &reason, false, None)
    }

    #[test]
    fn a_first_poll_delays_readiness_until_it_fails_is_applied_or_has_taken_a_minute() {
        let (start, mut state) = (Instant::now(), RepositoryState::new());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(state.delays_readiness(at(1_000)), "it waits for its turn");
        state.first_poll = Some(at(1_000));
        assert!(state.delays_readiness(at(1_059)) && !state.delays_readiness(at(1_060)));
        state.applied_polls = 1;
        assert!(!state.delays_readiness(at(1_000)));
        state.applied_polls = 0;
        state.poll_failed(failure("refused"), UNIX_EPOCH);
        assert!(!state.delays_readiness(at(1_000)));
    }

    #[test]
    fn since_is_the_first_of_consecutive_failures_and_only_a_new_cause_is_reported() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let mut state = RepositoryState::new();
        assert!(state.poll_failed(failure("refused"), at(1)));
        assert!(!state.poll_failed(failure("refused"), at(2)));
        let later = PollFailure { retry_after: Some(Duration::from_secs(9)), ..failure("refused") };
        assert!(!state.poll_failed(later, at(2)));
        assert!(state.poll_failed(failure("no route"), at(3)));
        assert_eq!(state.health, Health::Unhealthy { since: at(1), failure: failure("no route") });
        assert_eq!((state.consecutive_failures, state.mirrored), (4, false));

        let left_out =
            |is_followed| vec![LeftOutRef { name: "refs/tags/a".to_owned(), is_followed, failure: failure("a tag") }];
        state.poll_succeeded(left_out(true), at(4));
        assert_eq!(state.health, Health::Unhealthy { since: at(1), failure: failure("a tag") });
        assert!(state.mirrored && state.consecutive_failures == 0);

        state.poll_succeeded(left_out(false), at(4));
        assert_eq!((&state.health, state.left_out.len()), (&Health::Healthy { since: at(4) }, 1));
        state.poll_succeeded(Vec::new(), at(5));
        assert!(state.left_out.is_empty());
        assert_eq!(state.health, Health::Healthy { since: at(4) });
        assert_eq!((state.consecutive_failures, state.last_success), (0, Some(at(5))));
    }
}
