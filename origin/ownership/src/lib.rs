//! Which node of a cluster owns which repository, and which repository has the name of a service: decisions without I/O,
//! with time as an argument. The crate knows names and generations, and neither a store nor what a repository publishes:
//! the caller reads and writes the records, and starts and stops the work.
//!
//! [`Core::handle`] takes an [`Event`] and returns [`Action`]s. Begin at `core.rs`; `session.rs` keeps this node's session,
//! `members.rs` decides whether sessions of others have ended, `repository.rs` and `decision.rs` decide about one
//! repository, `placement.rs` says where it belongs, and `moving.rs` how it gets there. `names.rs` decides about the name of
//! a service, and [`NameWriter`] how the records of names are written. `simulation` runs all of this in virtual time.
//!
//! # One writer for each record
//! `nodes/<name>` is written by the core of that node alone. A repository's record has one writer in the whole cluster at
//! any time, and a compare-and-set on its version makes sure of it:
//!
//! - From [`Action::Start`] to [`Event::Stopped`] or [`Event::AllStopped`] the repository's writer alone writes it. It
//!   begins at the version in `Start`, adds one to the sequence with each write, and leaves the [`Claim`] as it is. If it
//!   finds another version, it reports [`Event::Superseded`] and writes no more.
//! - At all other times the core alone writes it, by [`Action::WriteRepository`]: a new claim in an otherwise unchanged
//!   record whose sequence is one higher. A node claims for itself alone: to hand a repository over, the owner stops its
//!   work and marks its own claim as released, and the next owner claims it.
//! - The writer need not settle an unknown outcome before it stops. It reports `is_settled: false`, and the core makes a
//!   compare-and-set of its own before it starts the repository again.
//!
//! So a session and a sequence identify the bytes of a record.

mod cluster;
mod core;
mod decision;
mod members;
mod messages;
mod moving;
mod name_writer;
mod names;
mod owning;
mod placement;
mod records;
mod repository;
mod requests;
mod session;
#[cfg(test)]
mod simulation;
mod timing;

use weir_protocol::name::NodeName;

pub use self::cluster::Living;
pub use self::core::Core;
pub use self::messages::{Action, Answer, Event, Request};
pub use self::name_writer::{NameStep, NameWriter};
pub use self::names::{Entry, NAME_BUCKETS, NameAnswer, NameChange, NameRequest, Names};
pub use self::placement::{Placement, place};
pub use self::records::{Claim, Digests, NodeRecord, NodeState, SessionId};
pub use self::timing::Timing;

/// What a node knows about itself when it starts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the node.
    pub node: NodeName,
    /// Where other members and edges reach it.
    pub url: String,
    /// Its availability zone.
    pub zone: Option<String>,
    /// Its share of the repositories, relative to other nodes.
    pub weight: u32,
    /// What it should have in common with the others.
    pub digests: Digests,
    /// The intervals of the cluster.
    pub timing: Timing,
    /// A random number that identifies this run. The caller stores it in the data directory before the first action.
    pub run: u64,
    /// The clock at the start, in Unix milliseconds: see [`Claim::fence`].
    pub clock: u64,
    /// The run that was stored there before. It has ended, because the caller holds the lock of the data directory; so
    /// the node need not wait until its session ends.
    pub ended: Option<u64>,
}
