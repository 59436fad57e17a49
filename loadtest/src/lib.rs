//! Runs all of Weir in one process or in many, for tests and load tests.
//!
//! There are no mocks: [`git_server`] is git's own smart-HTTP backend behind TLS, [`cluster`] starts the roles in this
//! process, and [`processes`] starts their binaries.

pub mod cluster;
mod connect;
pub mod frames;
pub mod git_repository;
pub mod git_requests;
pub mod git_server;
pub mod poller;
pub mod processes;
pub mod processor;
pub mod questions;
pub mod relay;
pub mod scrape;
pub mod slow_reader;
pub mod streams;
pub mod tree;
