//! The edge: the cache between agents and origins.
//!
//! [`start`] composes it: `agent_api` answers agents, as far as `access` lets them, from the `service_table` (what each service is now) and the
//! `blob_cache` (the bytes); what they do not hold they ask of origins through `origin_client`, once per service
//! (`single_flight`) and once per blob (`blob_cache::fill`), whoever asks. What origins tell by themselves arrives
//! through `origin_follower`.

mod access;
mod agent_api;
mod blob_cache;
pub mod check;
mod clock;
pub mod config;
mod edge;
mod explain;
mod metrics;
mod operator_api;
mod origin_client;
mod origin_follower;
mod reload;
mod service_table;
mod single_flight;
mod status;
mod version;

#[cfg(fuzzing)]
pub use blob_cache::fuzz_index;
pub use config::Config;
pub use edge::{Running, start};
