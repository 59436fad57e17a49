//! What is requested of an edge for one service, and what comes of it.

use weir_protocol::digest::TarballDigest;
use weir_protocol::request_id::RequestId;
use weir_release::ReleaseName;

use crate::edge_client::Edge;
use crate::fetch::{Tarball, TarballHeaders};
use crate::verify::SignedPublication;

/// The state of a service on this machine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LocalState {
    pub(crate) digest: Option<TarballDigest>,
    pub(crate) highest_generation: u64,
    /// A verified tarball that could not be unpacked: polls do not fetch it again.
    pub(crate) rejected: Option<TarballDigest>,
    /// A complete release that is not current: it is not fetched again.
    pub(crate) unpacked: Option<ReleaseName>,
    /// The service stays at its release, whatever edges offer.
    pub(crate) pinned: bool,
}

/// What is requested of an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// What is new.
    Poll,
    /// The current tarball, past all caches.
    Refresh,
    /// The retained version with this digest, past all caches. The rest is what this agent knows of it.
    Retained(TarballHeaders),
}

/// The part of a poll that is about one edge.
#[derive(Clone, Copy)]
pub(super) struct EdgePoll<'a> {
    pub(super) edge: &'a Edge,
    pub(super) local: LocalState,
    /// All requests of a poll have the same.
    pub(super) request_id: &'a RequestId,
}

/// Which tarball is downloaded.
#[derive(Clone, Copy)]
pub(super) enum Version<'a> {
    Current,
    /// The current one, which an origin signed.
    Signed(&'a SignedPublication),
    Retained(&'a TarballHeaders),
}

impl Version<'_> {
    pub(super) fn digest(self) -> Option<TarballDigest> {
        match self {
            Self::Current => None,
            Self::Signed(signed) => Some(signed.digest),
            Self::Retained(known) => known.digest,
        }
    }
}

/// The result of a poll.
pub(crate) enum PollResult {
    Unchanged(TarballHeaders),
    /// The release that is on disk already, and not current.
    Unpacked(ReleaseName, TarballHeaders),
    /// What an edge offers while the service is pinned.
    Held(TarballHeaders),
    /// What an edge offers while a later version is staged for other agents. After a refresh with the release, which stays.
    Staged(TarballHeaders, Option<Box<(Tarball, TarballHeaders)>>),
    /// A verified tarball: a new one after a poll, any after a refresh.
    Fetched(Tarball, TarballHeaders),
}

impl PollResult {
    /// What a refresh fetched while a later version is staged for other agents is a tarball like any other.
    pub(super) fn refreshed(self) -> Self {
        match self {
            Self::Staged(_, Some(refreshed)) => {
                let (tarball, held) = *refreshed;
                Self::Fetched(tarball, held)
            }
            found => found,
        }
    }
}
