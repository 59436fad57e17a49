//! Reconciles repositories: a worker for each one polls its upstream, writes its mirror and publishes its services. Begin at
//! `worker`, whose table lists all events; `service_states` is the state machine of services.
//!
//! `start` starts a worker, and others use its `handle`. The handlers of its events: `poll_result`, `steps` (of a service),
//! `service_result`, `lfs_state`, `rebuild` and `maintenance` (with `bundles`). The tasks that they start: `poll` (with `poll_watchdog` and
//! `poll_permit`) and `pipeline` (with `lfs` and `build`). Times: `schedule`, `back_offs`. Limits: `limiter` and
//! `budget`. `preview` serves dry runs. `part_sources` joins the sources of composed services.
//!
//! Blocking work runs as a `job` on its own thread, with a deadline. A thread that ignores the deadline delays only its own
//! repository.

mod back_offs;
mod budget;
mod build;
mod bundles;
mod context;
mod handle;
mod job;
mod lfs;
mod lfs_state;
mod limiter;
mod maintenance;
mod part_sources;
mod pipeline;
mod poll;
mod poll_permit;
mod poll_result;
mod poll_watchdog;
mod preview;
mod rebuild;
mod revisions;
mod schedule;
mod service_result;
mod service_states;
mod start;
mod state;
mod steps;
mod threads;
mod worker;

pub(crate) use bundles::prepare;
pub(crate) use context::Context;
pub(crate) use handle::{Handle, MirrorDisposal, Terminated};
pub(crate) use preview::{PreviewError, PreviewRequest, PreviewTarget};
pub(crate) use start::{StartOptions, start};
pub use state::{Failure, Health, LfsFailure, LfsState, Phase, RepositoryState, WaitsFor};
