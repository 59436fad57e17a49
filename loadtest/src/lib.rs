//! All of Weir in one process or in many, for tests and load.
//!
//! Nothing here is a stand-in: [`git_server`] is git's own smart-HTTP backend behind TLS, [`cluster`] starts the real
//! roles in this process, [`processes`] starts their binaries.

pub mod cluster;
mod connect;
pub mod git_repository;
pub mod git_server;
pub mod poller;
pub mod processes;
pub mod relay;
pub mod scrape;
pub mod slow_reader;
pub mod tree;
