//! One repository as this node sees it: what it knows, and when it has to read the record.

use std::time::Instant;

use weir_protocol::name::NodeName;

use super::cluster::{Cluster, Rank};
use super::decision::Decision;
use super::placement::Placement;
use super::records::Claim;

#[derive(Debug)]
pub(super) struct Repository<V> {
    pub(super) placement: Placement,
    pub(super) known: Known<V>,
    pub(super) activity: Activity,
    /// Who gets the repository with the next write, while its record is still this node's.
    pub(super) hand_to: Option<NodeName>,
    pub(super) outstanding: Outstanding<V>,
    pub(super) is_in_flight: bool,
    /// The write in flight.
    pub(super) write: Option<(Option<V>, Claim)>,
    pub(super) must_read: bool,
    /// The owner has released the repository for this node.
    pub(super) is_invited: bool,
    /// Nothing is requested earlier.
    not_before: Instant,
    /// No planned move begins earlier.
    pub(super) move_not_before: Instant,
    pub(super) failures: u32,
    /// Since when this node knows that the repository has no living owner.
    pub(super) unowned_since: Option<Instant>,
    expected: Option<Expected>,
    pub(super) timer: Option<Instant>,
}

/// What this node does for a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Activity {
    Idle,
    /// It owns the repository: it fetches and publishes.
    Running {
        fence: u64,
        moving: Option<Move>,
    },
    /// It stops fetching and publishing.
    Stopping {
        to: Option<NodeName>,
    },
}

/// A planned move whose target is not ready yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) to: NodeName,
    pub(super) since: Instant,
    pub(super) next_ask: Instant,
}

/// The repository is about to change its owner, and a message about it may be lost: its record is read regularly.
#[derive(Debug)]
struct Expected {
    until: Instant,
    next_read: Instant,
}

/// The last read of the record.
#[derive(Debug)]
pub(super) enum Known<V> {
    Nothing,
    Absent,
    /// The claim was first read before `noticed`.
    Record {
        claim: Claim,
        version: V,
        noticed: Instant,
    },
}

/// Own writes that may still be committed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outstanding<V> {
    None,
    /// They expect this version.
    Expecting(Option<V>),
    /// The writer of the repository made them.
    Any,
}

/// What an idle repository needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    At(Instant),
    Read,
}

impl<V: Clone + PartialEq> Repository<V> {
    pub(super) fn new(placement: Placement, now: Instant) -> Self {
        Self {
            placement,
            known: Known::Nothing,
            activity: Activity::Idle,
            hand_to: None,
            outstanding: Outstanding::None,
            is_in_flight: false,
            write: None,
            must_read: false,
            is_invited: false,
            not_before: now,
            move_not_before: now,
            failures: 0,
            unowned_since: None,
            expected: None,
            timer: None,
        }
    }

    /// What to do while the repository is idle.
    pub(super) fn next(&mut self, cluster: &Cluster) -> Next {
        let now = cluster.now;
        if self.activity != Activity::Idle || self.is_in_flight || !cluster.can_decide() {
            return Next::Nothing;
        }
        let must_read = self.must_read || self.hand_to.is_some() || self.outstanding != Outstanding::None;
        let due = if must_read { Some(now) } else { self.read_at(cluster) };
        let expected = self.expected.as_ref().map(|expected| expected.next_read);
        match due.into_iter().chain(expected).min().map(|due| due.max(self.not_before)) {
            None => Next::Nothing,
            Some(due) if due <= now => Next::Read,
            Some(due) => Next::At(due),
        }
    }

    /// When the record has to be read, as far as the last read tells.
    fn read_at(&mut self, cluster: &Cluster) -> Option<Instant> {
        let (now, rank) = (cluster.now, cluster.rank(&self.placement));
        if let Known::Record { claim, noticed, .. } = &self.known {
            if cluster.is_mine(claim) {
                return (!cluster.is_draining || self.placement.winner.is_some()).then_some(now);
            }
            if !cluster.is_free(claim, *noticed) {
                self.unowned_since = None;
                let is_listed = cluster.session_of(&claim.owner) == Some(claim.session);
                // Otherwise the claim is newer than the view, or its session is judged by a later view.
                return (!is_listed && rank != Rank::Other).then(|| now + cluster.timing.scan_every());
            }
        }
        match (rank, &self.known) {
            (Rank::Other, _) => None,
            (_, Known::Nothing) | (Rank::Winner, _) => Some(now),
            (Rank::RunnerUp, _) => Some(self.unowned(now) + cluster.timing.runner_up_pause()),
        }
    }

    /// Since when the repository has no living owner.
    pub(super) fn unowned(&mut self, now: Instant) -> Instant {
        *self.unowned_since.get_or_insert(now)
    }

    /// Takes the answer to a read, and decides.
    pub(super) fn read(&mut self, stored: Option<(Claim, V)>, cluster: &Cluster) -> Decision<V> {
        let next_read = cluster.now + cluster.timing.renew_every();
        self.expected = self.expected.take().filter(|expected| cluster.now < expected.until);
        self.expected.iter_mut().for_each(|expected| expected.next_read = next_read);
        let decision = self.decide(stored, cluster);
        if decision == Decision::Nothing {
            self.not_before = cluster.now + cluster.timing.retry_after();
        }
        decision
    }

    /// The write in flight is durable.
    pub(super) fn written(&mut self, claim: Claim, version: V, now: Instant) {
        self.outstanding = Outstanding::None;
        self.hand_to = None;
        self.unowned_since = None;
        self.expected = None;
        self.know(claim, version, now);
    }

    /// The write in flight was refused: somebody else wrote the record. A move is given up.
    pub(super) fn refused(&mut self, cluster: &Cluster) {
        (self.must_read, self.hand_to) = (true, None);
        self.not_before = cluster.now + cluster.timing.retry_after();
    }

    /// A read failed, or a write that expects `write` has an unknown outcome.
    pub(super) fn failed(&mut self, write: Option<Option<V>>, cluster: &Cluster) {
        if let Some(expect) = write {
            self.outstanding = Outstanding::Expecting(expect);
        }
        self.must_read = true;
        let pause = cluster.timing.retry_after() * (1 << self.failures.min(4));
        self.not_before = cluster.now + pause.min(cluster.timing.renew_every());
        self.failures += 1;
    }

    /// Nothing fetches or publishes any more.
    pub(super) fn stopped(&mut self, is_settled: bool) {
        if let Activity::Stopping { to } = std::mem::replace(&mut self.activity, Activity::Idle) {
            (self.hand_to, self.must_read) = (to, true);
            if !is_settled {
                self.outstanding = Outstanding::Any;
            }
        }
    }

    /// The own session has ended: nothing of it counts.
    pub(super) fn suspend(&mut self) {
        (self.activity, self.hand_to, self.outstanding) = (Activity::Idle, None, Outstanding::None);
        (self.is_in_flight, self.write, self.timer) = (false, None, None);
        (self.unowned_since, self.expected) = (None, None);
    }

    /// The record has this version. Who may have to take the repository over reads what changed.
    pub(super) fn listed(&mut self, version: Option<&V>, cluster: &Cluster) {
        let is_known = matches!(&self.known, Known::Record { version: known, .. } if Some(known) == version);
        if !is_known && self.activity == Activity::Idle && cluster.rank(&self.placement) != Rank::Other {
            self.must_read = true;
        }
    }

    /// The owner has released the repository for this node.
    pub(super) fn told(&mut self, now: Instant) {
        (self.must_read, self.is_invited, self.not_before) = (true, true, now);
    }

    /// The repository is about to change its owner.
    pub(super) fn expect(&mut self, cluster: &Cluster) {
        let until = cluster.now + cluster.timing.ttl;
        match &mut self.expected {
            Some(expected) => expected.until = until,
            None => self.expected = Some(Expected { until, next_read: cluster.now + cluster.timing.renew_every() }),
        }
    }

    /// Who should take the repository that this node has released.
    pub(super) fn next_owner(&self, cluster: &Cluster) -> Option<&NodeName> {
        match &self.known {
            Known::Record { claim, .. } if claim.is_released && Some(claim.session) == cluster.session => {
                self.placement.winner.as_ref().filter(|winner| **winner != cluster.me)
            }
            _ => None,
        }
    }

    pub(super) fn know(&mut self, claim: Claim, version: V, now: Instant) {
        let noticed = match &self.known {
            Known::Record { claim: before, noticed, .. } if *before == claim => *noticed,
            _ => now,
        };
        self.known = Known::Record { claim, version, noticed };
    }
}
