//! What crosses Weir's wire, and the skeleton that every role's process shares.
//!
//! A thing enters here only when it crosses the wire or when every role must do it in the same way, and at least two
//! crates use it. The modules at the top are *the protocol* and pure: no I/O, no clock. [`process`] is the skeleton:
//! serving HTTP, TLS, configuration, telemetry, shutdown.

pub mod access_list;
pub mod cache_status;
pub mod commit_id;
pub mod conditional;
pub mod descriptor;
pub mod digest;
pub mod encoding;
pub mod entry_path;
pub mod envelope;
pub mod event;
pub mod manifest;
pub mod name;
pub mod name_glob;
pub mod problem;
pub mod process;
pub mod query;
pub mod range;
pub mod revision_id;
pub mod route;
mod text_form;
pub mod token;
