//! One agent per repository: it alone polls the upstream, writes the mirror and publishes the repository's services.
//!
//! `handle` is what others hold, `task` the owner, `schedule` when it polls, `places`, `shares` and `budget` how many may at a time, `poll`, `pass` and `heal` what it does.
//! Git work blocks, so each piece runs as a `job` on a thread of its own, with a deadline: when that passes the work is
//! told to stop and the state says so, and a thread that does not come back holds up nobody but its own repository.

mod budget;
mod build;
mod fetch_places;
mod handle;
mod heal;
mod job;
mod lfs;
mod lfs_sweep;
mod mirror_slot;
mod pass;
mod places;
mod poll;
mod preview;
mod restore;
mod schedule;
mod shares;
mod state;
mod task;
mod threads;
mod turn;
mod upkeep;

pub(crate) use handle::{Gone, Handle, MirrorFate};
pub(crate) use preview::{At, PreviewError, Wanted};
pub(crate) use restore::{NotRestored, Restorer};
pub use state::{Failure, Health, Phase, RepositoryState, WaitsFor};
pub(crate) use task::{Begin, Crew, start};
