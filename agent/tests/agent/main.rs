//! The agent against a small edge of the tests' own: real TLS, real QUIC, real disk.

#![allow(clippy::too_many_lines, reason = "a scenario is told in one piece")]
#![allow(clippy::disallowed_methods, reason = "queues of tests end with the test")]

mod agent_under_test;
mod deltas;
mod edge;
mod relay;
mod staged;
mod tarball;

mod admin;
mod assigned;
mod batch;
mod command_line;
mod deleted;
mod depends_on;
mod disk;
mod doctor;
mod edges;
mod exec;
mod follow;
mod frames;
mod hooks;
mod hostile;
mod hostile_edges;
mod kills;
mod labels;
mod observed;
mod once;
mod pin;
mod power_cuts;
mod proxy;
mod refresh;
mod reload;
mod restart;
mod resume;
mod secrets;
mod token;
mod trust;
mod udp;
mod verify;
