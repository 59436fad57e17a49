//! The origin against real Git, real TLS, real disks and real sockets.

mod access;
mod attribute_corners;
mod commit_policy;
mod configuration;
mod damage;
mod event_reader;
mod events;
mod fragments;
mod fsck;
mod full_disk;
mod git_fixture;
mod gzip;
mod healing;
mod hostile_host;
mod hostile_trees;
mod hostile_upstreams;
mod kills;
mod lfs;
mod lfs_server;
mod lfs_services;
mod maintenance;
mod mirror_polls;
mod mirror_ssh;
mod mirror_transports;
/// The edge has the same need; neither crate can be asked for the other's tests.
#[path = "../../../edge/tests/edge/mount.rs"]
mod mount;
mod node;
mod object_formats;
mod operators;
mod pieces;
mod publishing;
mod recovery;
mod refs;
mod scheduling;
mod scripted_server;
mod signing;
mod smart_http;
mod ssh_server;
mod tar_reading;
mod tarball_bytes;
mod tarball_contents;
mod unpublished;
mod upstream;
mod versions;
mod webhooks;
