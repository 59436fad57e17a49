//! The origin: mirrors Git repositories and publishes their folders as tarballs. Begin at [`start`], which composes
//! all parts.
//!
//! The path of a commit: [`reconcile`] polls, `weir_source` fetches, resolves the commit and tree of each service and reads
//! its contents, `weir_tarball` builds them, `weir_publish` puts objects into `weir_store` and makes the publication visible, and
//! `edge_api` answers edges.

mod access;
mod catalog;
mod certificates;
mod check_config;
mod cluster;
pub mod config;
mod delivery;
mod deltas;
mod diff;
mod disk_watch;
mod doctor;
mod edge_api;
mod event_log;
mod families;
mod fleet;
mod fleet_gauges;
mod freezes;
mod last_seen;
mod lost_definitions;
mod member_api;
mod member_client;
mod metrics;
mod named_list;
mod names;
mod observed;
mod operator_api;
mod part_news;
mod plans;
mod readiness;
pub mod reconcile;
mod record_engine;
mod rollouts;
mod running;
mod shared_read;
mod shown;
mod staging;
mod start;
mod starting;
mod status;
mod status_page;
mod stored_documents;
mod summary;
mod tar_reader;
mod verify;
pub mod versions;
pub mod webhook;

pub use access::SentList;
#[cfg(feature = "fuzzing")]
pub use catalog::fuzz_document;
pub use check_config::check_config;
pub use doctor::doctor;
/// Proves that an engine can hold the records of several origins.
pub mod proof {
    pub use weir_store::proof::{Proof, ProofError};

    pub use crate::record_engine::prove;
}
pub use families::families;
#[cfg(feature = "fuzzing")]
pub use operator_api::fuzzing;
pub use operator_api::{OperatorRequest, operator_requests};
pub use running::Running;
pub use start::start;
pub use stored_documents::{StoredDocuments, stored_documents};
pub use verify::verify;
