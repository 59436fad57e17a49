//! Reconciles repositories: a worker for each one polls its upstream, writes its mirror and publishes its services. Begin at
//! `worker`, whose table lists all events; `service_states` is the state machine of services.
//!
//! `start` starts a worker, and others use its `handle`. The worker alone composes: it owns `polls` (with `schedule`), `steps`,
//! `back_offs`, `maintenance`, `rebuild`, `step_backs`, `part_changes` and `revision_reports` (with `revisions`), none of which
//! knows it. The tasks that these start: `poll` (with `poll_watchdog` and `poll_permit`), `pipeline` (with `lfs` and `build`) and
//! `bundles`. `ref_watch` triggers polls of a repository on this machine. They share `repository`, and all repositories `context`.
//! Limits: `limiter` and `budget`. `preview` serves dry runs. `part_sources` joins the sources of composed services, and with `published_parts` what other services have published.
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
mod part_changes;
mod part_sources;
mod pipeline;
mod poll;
mod poll_permit;
mod poll_watchdog;
mod polls;
mod preview;
mod published_parts;
mod rebuild;
mod ref_watch;
mod repository;
mod revision_reports;
mod revisions;
mod schedule;
mod service_states;
mod signals;
mod staging;
mod start;
mod state;
mod step_backs;
mod steps;
mod threads;
mod worker;

pub(crate) use bundles::prepare;
#[cfg(test)]
pub(crate) use bundles::tests::git;
pub(crate) use context::Context;
pub(crate) use handle::{Handle, MirrorDisposal, Terminated};
pub(crate) use part_sources::PartSources;
pub(crate) use preview::{PreviewError, PreviewRequest, PreviewTarget};
pub(crate) use staging::BuildToStageError;
pub(crate) use start::{StartOptions, start};
pub use state::{Health, LfsFailure, LfsState, Phase, RepositoryState, WaitsFor};
