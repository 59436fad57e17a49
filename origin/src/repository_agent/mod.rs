//! One agent per repository: it alone polls the upstream, writes the mirror and publishes the repository's services.
//!
//! `handle` is what others hold, `task` the owner and its loop, `start` how it begins and ends. What it does: `poll` (watched
//! by `pace`) and what follows (`poll_result`), `reconcile` (`build`), `revisions`, `rebuild`, `lfs`, `maintenance`. When:
//! `schedule`, `back_offs` and `back_off`. How many at a time: `limiter` (`poll_permit`) and `budget`.
//!
//! Polls, upkeep and fetches of LFS objects are under way beside the loop. Whatever publishes is done in it, one after the
//! other, and by what the mirror holds at that time: nothing old is published after something new.
//!
//! Git work blocks, so each piece runs as a `job` on a thread of its own, with a deadline: when that passes the work is
//! told to stop and the state says so, and a thread that does not come back holds up nobody but its own repository.

mod back_off;
mod back_offs;
mod budget;
mod build;
mod context;
mod handle;
mod job;
mod lfs;
mod limiter;
mod maintenance;
mod mirror_slot;
mod pace;
mod poll;
mod poll_permit;
mod poll_result;
mod preview;
mod rebuild;
mod reconcile;
mod revisions;
mod schedule;
mod start;
mod state;
mod task;
mod threads;

pub(crate) use context::Context;
pub(crate) use handle::{Gone, Handle, MirrorFate};
pub(crate) use preview::{At, PreviewError, Wanted};
pub(crate) use start::{Begin, start};
pub use state::{Failure, Health, LfsFailure, LfsState, Phase, RepositoryState, WaitsFor};
