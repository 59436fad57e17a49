//! The agent against a small edge of the tests' own: real TLS, real QUIC, real disk.

mod agent_under_test;
mod deltas;
mod edge;
mod relay;
mod tarball;

mod admin;
mod command_line;
mod edges;
mod exec;
mod follow;
mod hostile;
mod once;
mod refresh;
mod reload;
mod restart;
mod token;
mod udp;
mod verify;
