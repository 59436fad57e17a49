//! One fuzz target for each parser of bytes from outside.
//!
//! Each asserts more than "it does not panic": what was read is within its bounds, and what is written of it is read back
//! the same. An ordinary test (`loadtest/tests/system/fuzz_seeds.rs`) includes this module and replays the seeds.

mod access;
mod http;
mod lfs;
mod origin;
mod wire;

/// A fuzz target: it panics when a parser breaks its promise.
pub(crate) type Target = fn(&[u8]);

/// All of them, by name.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("range", http::range),
    ("entity_tags", http::entity_tags),
    ("accept_encoding", http::accept_encoding),
    ("route", http::route),
    ("http3_head", http::http3_head),
    ("http3_request", http::http3_request),
    ("http3_control", http::http3_control),
    ("descriptor", wire::descriptor),
    ("manifest", weir_protocol::manifest::fuzz_manifest),
    ("event_stream", wire::event_stream),
    ("members", wire::members),
    ("batch_poll", wire::batch_poll),
    ("agent_events", wire::agent_events),
    ("observed", wire::observed),
    ("heartbeats", wire::heartbeats),
    ("token", access::token),
    ("jwk_set", access::jwk_set),
    ("access_list", access::access_list),
    ("access_shard", access::access_shard),
    ("access_files", access::access_files),
    ("operator_document", weir_origin::fuzzing::document),
    ("operator_page", weir_origin::fuzzing::page),
    ("operator_route", weir_origin::fuzzing::route),
    ("stored_document", weir_origin::fuzz_document),
    ("revision", origin::revision),
    ("webhook", weir_origin::webhook::fuzzing::delivery),
    ("signed_object", weir_git::commit_policy::fuzz_signed_object),
    ("upstream_words", weir_upstream::fuzz_upstream_words),
    ("registry_words", weir_source::fuzz_registry_words),
    ("cosign", weir_source::fuzz_cosign),
    ("helm_index", weir_source::fuzz_helm_index),
    ("archive", weir_source::fuzz_archive),
    ("lfs_pointer", lfs::pointer),
    ("lfs_answer", lfs::answer),
];
