//! What was seen of a cluster from outside. Times count from the start of the test.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_loadtest::git_requests::Wants;
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;

/// Everything that was seen.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) publications: Vec<Seen>,
    pub(crate) polls: Vec<Poll>,
    pub(crate) vouches: Vec<Vouch>,
    pub(crate) pushes: Vec<Push>,
    pub(crate) cut_off: Vec<CutOff>,
    pub(crate) deaths: Vec<Death>,
    /// The polls that agents count as failed.
    pub(crate) failed_polls: u64,
}

impl History {
    /// How often a repository was fetched by another origin than before.
    pub(crate) fn changes_of_owners(&self) -> usize {
        let mut last: BTreeMap<&str, &str> = BTreeMap::new();
        let mut changes = 0;
        for fetch in &self.fetches {
            let before = last.insert(&fetch.repository, &fetch.origin);
            changes += usize::from(before.is_some_and(|before| before != fetch.origin));
        }
        changes
    }
}

/// A request of an origin to the Git server.
#[derive(Debug, Clone)]
pub(crate) struct Fetch {
    pub(crate) origin: String,
    pub(crate) repository: String,
    pub(crate) wants: Wants,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
}

/// A publication, in an origin's events or in an edge's answer.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Duration,
    /// The origin or the edge.
    pub(crate) node: String,
    /// Who saw it. What one reader sees of a node is in order.
    pub(crate) reader: usize,
    pub(crate) service: ServiceName,
    pub(crate) generation: Generation,
    pub(crate) digest: TarballDigest,
    pub(crate) commit: String,
}

/// A poll by a client that knows all edges, as agents do.
#[derive(Debug, Clone)]
pub(crate) struct Poll {
    pub(crate) at: Duration,
    pub(crate) service: ServiceName,
    /// Why no edge answered.
    pub(crate) failure: Option<String>,
}

/// An origin says that all it owns is current: a heartbeat.
#[derive(Debug, Clone)]
pub(crate) struct Vouch {
    pub(crate) at: Duration,
    pub(crate) origin: String,
}

/// A commit in a repository upstream. Each repository has one service.
#[derive(Debug, Clone)]
pub(crate) struct Push {
    pub(crate) at: Duration,
    pub(crate) service: ServiceName,
    pub(crate) commit: String,
}

/// An origin could not reach the engine, or not hear from it.
#[derive(Debug, Clone)]
pub(crate) struct CutOff {
    pub(crate) origin: String,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
}

/// An origin ended or was stopped without notice, and nothing else was wrong until `undisturbed_until`.
#[derive(Debug, Clone)]
pub(crate) struct Death {
    pub(crate) origin: String,
    pub(crate) at: Duration,
    pub(crate) undisturbed_until: Duration,
}
