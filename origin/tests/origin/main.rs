//! The origin against real Git, real TLS, real disks and real sockets.
//!
//! `WEIR_NIGHTLY=1` runs the long form of tests that have two: more random cases, all steps to be killed at, larger trees.

#![allow(clippy::too_many_lines, reason = "a scenario is told in one piece")]

mod access;
mod any_origin;
mod artifact_signatures;
mod artifacts;
mod assignments;
mod batches;
mod broken_refs;
mod bundles;
mod changed_documents;
mod chart_registries;
mod chart_signatures;
mod chart_versions;
mod charts;
mod clock;
mod cluster_check;
mod commit_policy;
mod composed;
mod configuration;
mod damage;
mod disks;
mod doctor;
mod dry_runs;
mod events;
mod freezes;
mod helm_repository;
mod hostile_host;
mod kills;
mod large_deltas;
mod lfs;
mod lfs_elsewhere;
mod lfs_server;
mod lfs_services;
mod lfs_waits;
mod lost_state;
mod made_deltas;
mod maintenance;
/// The edge has the same need; neither crate can be asked for the other's tests.
#[path = "../../../edge/tests/edge/mount.rs"]
mod mount;
mod moved_refs;
mod node;
mod object_formats;
mod observed;
mod oci;
mod operator;
mod operator_changes;
mod operator_roles;
mod operators;
mod page;
mod part_services;
mod parts_of_other_origins;
mod prelude;
mod publishing;
mod rebuilds;
mod recovery;
mod refs;
mod refused_documents;
mod registry_server;
mod rollout_approvals;
mod rollout_documents;
mod rollout_ends;
mod rollout_moves;
mod rollout_plans;
mod rollouts;
mod scheduling;
mod service_names;
mod several_operators;
mod several_origins;
mod side_by_side;
mod signing;
mod status_pages;
mod step_backs;
mod stored_state;
mod unpublished;
mod upstream;
mod versions;
mod webhooks;

// The tests of mirrors have the same needs.
#[allow(dead_code, reason = "the tests of mirrors use the rest")]
#[path = "../../git/tests/git/git_fixture.rs"]
mod git_fixture;
#[path = "../../git/tests/git/packs.rs"]
mod packs;
#[path = "../../git/tests/git/prepared.rs"]
mod prepared;
#[allow(dead_code, reason = "the tests of mirrors use the rest")]
#[path = "../../git/tests/git/scripted_server.rs"]
mod scripted_server;
#[allow(dead_code, reason = "the tests of mirrors use the rest")]
#[path = "../../git/tests/git/smart_http.rs"]
mod smart_http;
#[path = "../../git/tests/git/ssh_server.rs"]
mod ssh_server;
#[allow(dead_code, reason = "the tests of mirrors use the rest")]
#[path = "../../git/tests/git/tar_reading.rs"]
mod tar_reading;

/// The size of a test that has a short form, for each change, and a long one, for each night.
fn long_or<T>(long: T, short: T) -> T {
    if std::env::var_os("WEIR_NIGHTLY").is_some_and(|value| value == "1") { long } else { short }
}
