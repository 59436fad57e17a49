//! The origin against real Git, real TLS, real disks and real sockets.

mod access;
mod attribute_corners;
mod configuration;
mod damage;
mod events;
mod git_fixture;
mod gzip;
mod healing;
mod hostile_trees;
mod mirror_polls;
mod mirror_transports;
mod node;
mod object_formats;
mod pieces;
mod publishing;
mod recovery;
mod refs;
mod scheduling;
mod signing;
mod smart_http;
mod tar_reading;
mod tarball_bytes;
mod tarball_contents;
mod unpublished;
mod upstream;
mod versions;
