//! The protocol of Weir: what a program needs to speak with an origin or an edge.
//!
//! Everything here is pure: it reads and writes bytes, and neither does I/O nor asks for the time. It compiles without
//! tokio, hyper and quinn. `docs/protocol.md` describes the same contract in prose.

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
pub mod json;
pub mod manifest;
pub mod name;
pub mod name_glob;
pub mod problem;
pub mod query;
pub mod range;
pub mod revision_id;
pub mod route;
mod text_form;
pub mod token;
