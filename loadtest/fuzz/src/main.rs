//! One fuzzer for each parser that meets bytes from outside, all in one program: `WEIR_FUZZ` names the one that runs.
//!
//! Each says more than "it does not panic": what was read is within its bounds, and is read back from what it is written
//! as.

#![no_main]

mod access;
mod http;
mod lfs;
mod origin;
mod wire;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

/// A fuzzer: it panics when a parser breaks its promise.
type Target = fn(&[u8]);

/// All of them, by name.
const TARGETS: &[(&str, Target)] = &[
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
    ("token", access::token),
    ("access_list", access::access_list),
    ("access_files", access::access_files),
    ("operator_document", weir_origin::fuzzing::document),
    ("operator_page", weir_origin::fuzzing::page),
    ("operator_route", weir_origin::fuzzing::route),
    ("stored_document", weir_origin::fuzz_document),
    ("revision", origin::revision),
    ("webhook", weir_origin::webhook::fuzzing::delivery),
    ("signed_object", weir_origin::fuzz_signed_object),
    ("upstream_words", weir_origin::mirror::fuzz_upstream_words),
    ("lfs_pointer", lfs::pointer),
    ("lfs_answer", lfs::answer),
];

static CHOSEN: OnceLock<Target> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let target = CHOSEN.get_or_init(|| {
        let name = std::env::var("WEIR_FUZZ").unwrap_or_default();
        let found = TARGETS.iter().find(|(known, _)| *known == name);
        let names = || TARGETS.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(" ");
        found.unwrap_or_else(|| panic!("WEIR_FUZZ must be one of: {}", names())).1
    });
    target(bytes);
});
