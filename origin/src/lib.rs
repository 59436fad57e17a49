//! The origin: mirrors Git repositories and publishes their folders as tarballs. Begin at [`start`], which composes
//! all parts.
//!
//! The path of a commit: [`reconcile`] polls, [`mirror`] fetches, [`revision`] resolves the commit and tree of each
//! service, [`source`] reads its contents, [`tarball`] builds them, `publish` puts objects into the `store` and makes
//! the publication visible, and `edge_api` serves edges.
//! and `edge_api` answers edges. [`start`] puts them together.

mod access;
mod bounds;
mod catalog;
mod certificates;
mod commit_policy;
pub mod config;
mod data_dir;
mod diff;
mod disk_watch;
mod edge_api;
mod event_log;
mod failpoint;
pub mod folder_path;
pub mod lfs;
mod lost_definitions;
mod metrics;
pub mod mirror;
mod operator_api;
mod outside_program;
mod publish;
mod readiness;
pub mod reconcile;
pub mod revision;
mod running;
mod service;
mod signing;
pub mod source;
mod status;
mod store;
mod stored_documents;
mod tar_reader;
pub mod tarball;
pub mod versions;
pub mod webhook;

#[cfg(feature = "fuzzing")]
pub use catalog::fuzz_document;
#[cfg(feature = "fuzzing")]
pub use commit_policy::fuzz_signed_object;
pub use metrics::families;
#[cfg(feature = "fuzzing")]
pub use operator_api::fuzzing;
pub use publish::verify;
pub use running::{Running, start};
pub use service::{Condition, Lost, WithoutPin};
pub use stored_documents::{StoredDocuments, stored_documents};
