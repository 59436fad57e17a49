//! The protocol of Weir, for programs that talk to an origin or an edge.
//!
//! Everything here is pure: it parses and encodes bytes without I/O and without a clock, and compiles without tokio,
//! hyper and quinn. `docs/protocol.md` describes the same contract in prose.

pub mod access_list;
pub mod agent_event;
pub mod assignment;
pub mod attached;
pub mod batch_poll;
pub mod cache_status;
pub mod commit_id;
pub mod conditional;
pub mod cosign;
pub mod dcz;
pub mod descriptor;
pub mod digest;
pub mod encoding;
pub mod entry_path;
pub mod envelope;
pub mod event;
pub mod freshness;
pub mod issuer;
pub mod json;
pub mod labels;
mod later_version;
pub mod manifest;
pub mod members;
pub mod name;
pub mod name_glob;
pub mod observed;
pub mod oci;
pub mod oci_manifest;
pub mod part;
pub mod plain_text;
pub mod problem;
pub mod query;
pub mod range;
pub mod request_id;
pub mod revision_id;
pub mod route;
pub mod source_version;
pub mod staged;
pub mod stored_body;
pub mod tar_writer;
mod text_type;
pub mod token;
pub mod versions;
