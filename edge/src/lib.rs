//! The edge: the cache between agents and origins.
//!
//! [`start`] composes it: `agent_api` answers agents, as far as `access` lets them, from the `catalog` (what each service
//! is now) and the `cache` (the bytes). What they do not have they ask of origins through `origin_client`, once per service
//! and once per object, whoever asks. Origins announce what changes through `origin_follower`.

mod access;
mod agent_api;
mod cache;
mod catalog;
pub mod check;
mod clock;
pub mod config;
mod edge;
mod metrics;
mod operator_api;
mod origin_client;
mod origin_follower;
mod reload;
mod single_flight;
mod status;
mod version;

pub use config::Config;
pub use edge::{Running, start};
pub use metrics::families;
