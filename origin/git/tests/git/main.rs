//! Mirrors against real Git, real TLS, real disks and real sockets, and what is read from them.
//!
//! `WEIR_NIGHTLY=1` runs the long form of tests that have two.

#![allow(clippy::too_many_lines, reason = "a scenario is told in one piece")]

mod attribute_corners;
mod broken_refs;
mod deltas;
mod frame_reuse;
mod git_fixture;
mod hostile_packs;
mod hostile_trees;
mod hostile_upstreams;
mod maintenance;
mod mirror_polls;
mod mirror_ssh;
mod mirror_transports;
mod object_formats;
mod packs;
mod pair;
mod patterns;
mod prelude;
mod prepared;
mod refs;
mod scripted_server;
mod silent_upstreams;
#[allow(dead_code, reason = "the origin's tests use the rest")]
mod smart_http;
mod ssh_server;
mod tar_reading;
mod tarball_bytes;
mod tarball_contents;

/// The size of a test that has a short form, for each change, and a long one, for each night.
fn long_or<T>(long: T, short: T) -> T {
    if std::env::var_os("WEIR_NIGHTLY").is_some_and(|value| value == "1") { long } else { short }
}

/// So many random cases, and eight times as many each night.
fn random_cases(cases: u32) -> proptest::prelude::ProptestConfig {
    proptest::prelude::ProptestConfig {
        cases: long_or(8 * cases, cases),
        failure_persistence: None,
        ..Default::default()
    }
}
