//! The origin: repository agents that turn Git repositories into published tarballs.
//!
//! A commit's way through the modules: [`repository_agent`] polls, [`mirror`] fetches, [`revision`] and [`tarball`] find
//! out what a service is at and build it, `publisher` stores the blob (`blob_store`) and states it (`publication`), and
//! `edge_api` answers edges. [`start`] puts them together.

mod access;
pub mod blob_store;
mod bounds;
mod catalog;
mod census;
mod certificates;
mod commit_policy;
pub mod config;
mod data_dir;
mod database;
mod diff;
mod disk_watch;
mod edge_api;
mod event_log;
mod failpoint;
pub mod folder_path;
pub mod fsck;
mod gzip;
mod housekeeping;
pub mod lfs;
mod metrics;
pub mod mirror;
mod operator_api;
mod outside_program;
mod publication;
mod publisher;
mod readiness;
pub mod repository_agent;
pub mod revision;
mod running;
mod service;
mod signing;
mod status;
pub mod tarball;
pub mod versions;
mod wall_clock;
pub mod webhook;

#[cfg(fuzzing)]
pub use catalog::fuzz_document_row;
pub use catalog::{begin_anew, ensure_there, refused_documents, services_left_alone};
#[cfg(fuzzing)]
pub use commit_policy::fuzz_signed_object;
#[cfg(fuzzing)]
pub use operator_api::fuzzing;
#[cfg(fuzzing)]
pub use publication::fuzzing::database_row as fuzz_database_row;
pub use running::{Running, start};
pub use service::{Condition, Lost, Otherwise};
