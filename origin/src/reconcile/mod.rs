//! One agent per repository: it alone polls the upstream, writes the mirror and publishes the repository's services.
//!
//! `handle` is what others hold, `worker` the owner and its loop, `start` how it begins and ends. What is under way with each
//! service, and what comes next, is decided in `work_list`: the state machine. What is done: `poll` (watched by `pace`) and
//! what follows (`poll_result`), `follow`, whose steps are in `work` (`build`, `lfs`), `revisions`, `rebuild`, `maintenance`.
//! When: `schedule`, `back_offs` and `back_off`. How many at a time: `limiter` (`poll_permit`) and `budget`.
//!
//! Nothing waits in the loop. Services do not wait for each other, nor for polls or upkeep, and these not for them.
//!
//! What a source does blocks, so each piece runs as a `job` on a thread of its own, with a deadline: when that passes the work is
//! told to stop and the state says so, and a thread that does not come back holds up nobody but its own repository.

mod back_off;
mod back_offs;
mod budget;
mod build;
mod context;
mod follow;
mod handle;
mod job;
mod lfs;
mod limiter;
mod maintenance;
mod pace;
mod poll;
mod poll_permit;
mod poll_result;
mod preview;
mod rebuild;
mod revisions;
mod schedule;
mod start;
mod state;
mod threads;
mod work;
mod work_list;
mod worker;

pub(crate) use context::Context;
pub(crate) use handle::{Gone, Handle, MirrorFate};
pub(crate) use preview::{PreviewError, PreviewRequest};
pub(crate) use start::{Begin, start};
pub use state::{Failure, Health, LfsFailure, LfsState, Phase, RepositoryState, WaitsFor};
