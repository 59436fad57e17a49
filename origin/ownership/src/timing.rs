//! The intervals of a cluster. All but a few follow from the time to live of a session.

use std::time::Duration;

/// The record of a node is deleted when its session has ended for this time. Longer than any machine is suspended without
/// its clock noticing: until then the record tells it that its session has ended.
const FORGET_NODE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The intervals that a member keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// A session ends for the other members when its record did not change for this time.
    pub ttl: Duration,
    /// The shortest time between a change of the members and a planned move.
    pub settle: Duration,
    /// The longest time between two listings of all repositories.
    pub list_every: Duration,
    /// A planned move is given up if its target is not ready after this time.
    pub move_patience: Duration,
    /// A member that leaves waits at most this long until the new owner of a repository is ready.
    pub drain_patience: Duration,
    /// The record of a node is deleted when its session has ended for this time.
    pub forget_node_after: Duration,
}

impl Timing {
    /// The default intervals for a time to live.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            settle: ttl * 2,
            list_every: Duration::from_secs(600),
            move_patience: Duration::from_secs(600),
            drain_patience: Duration::from_secs(5),
            forget_node_after: FORGET_NODE_AFTER,
        }
    }

    /// How long a session is valid for its own node after the node sent a renewal. The margin of a tenth covers clocks
    /// of different speed, and the time to stop all work.
    pub fn validity(&self) -> Duration {
        self.ttl - self.ttl / 10
    }

    pub(super) fn renew_every(&self) -> Duration {
        self.ttl / 3
    }

    /// How often a member reads the sessions of the others.
    pub(super) fn scan_every(&self) -> Duration {
        self.ttl / 6
    }

    /// The time limit of one request, so that several attempts fit into a session.
    pub fn attempt(&self) -> Duration {
        self.ttl / 6
    }

    /// The pause after a failed request.
    pub(super) fn retry_after(&self) -> Duration {
        self.ttl / 30
    }

    /// How long the runner-up leaves a repository without an owner to the winner.
    pub(super) fn runner_up_pause(&self) -> Duration {
        self.renew_every()
    }

    /// How often an owner asks the target of a move whether it is ready.
    pub(super) fn ask_every(&self) -> Duration {
        self.scan_every()
    }
}
