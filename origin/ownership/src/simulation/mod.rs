//! A deterministic simulator: nodes run the real core against a fake record store, in virtual time. Everything that
//! may go wrong does, by a seed, and the invariants are checked at each step.
//!
//! `WEIR_SIMULATION_SEED=n` replays one seed and prints what happens.

mod calm;
mod check;
mod clock;
mod cost;
mod driver;
mod engine;
mod faults;
mod names;
mod nemesis;
mod node;
mod run;
mod world;
mod writer;

use std::time::Duration;

use super::timing::Timing;

/// What a simulation consists of.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) timing: Timing,
    pub(super) nodes: usize,
    /// Nodes that only the nemesis starts.
    pub(super) spares: usize,
    pub(super) repositories: usize,
    /// The mean time between two publications of a repository. Zero: none.
    pub(super) publish_every: Duration,
    /// Services that all repositories may define.
    pub(super) services: usize,
    pub(super) mutant: Option<Mutant>,
}

/// A mistake that the simulator must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    /// The engine ignores the version that a write expects.
    VersionIgnored,
    /// Sessions are judged by comparing wall clocks.
    WallClocks,
    /// A node takes a claim with an unknown outcome for one that was not written.
    UnknownClaimIsFailure,
    /// A writer takes a publication with an unknown outcome for one that failed.
    UnknownPublicationIsFailure,
    /// A node takes a write of a names record with an unknown outcome for one that failed.
    UnknownNamesAreFailure,
    /// A name is freed before the service is removed.
    FreedBeforeRemoved,
}

/// Whether tests run at their full size.
fn is_nightly() -> bool {
    std::env::var_os("WEIR_NIGHTLY").is_some_and(|value| value == "1")
}

impl Plan {
    /// A small cluster with short intervals, so that much happens in few steps.
    fn small() -> Self {
        let timing = Timing {
            settle: Duration::from_secs(10),
            list_every: Duration::from_secs(150),
            move_patience: Duration::from_secs(60),
            forget_node_after: Duration::from_secs(60),
            ..Timing::new(Duration::from_secs(30))
        };
        let publish_every = Duration::from_secs(8);
        Self { timing, nodes: 3, spares: 2, repositories: 8, publish_every, services: 0, mutant: None }
    }

    /// A small cluster with few or many repositories that publish often or seldom.
    fn of_seed(seed: u64) -> Self {
        let repositories = [8, 4, 16][(seed % 3) as usize];
        let publish_every = Duration::from_secs([8, 90, 2][(seed / 3 % 3) as usize]);
        Self { repositories, publish_every, services: 6, ..Self::small() }
    }
}
