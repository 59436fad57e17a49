//! The edge: the cache between agents and origins.
//!
//! [`start`] composes it. `agent_api` answers agents that `access` allows, from the `catalog` (the current version of
//! each service) and the cache (`weir_cache`: the objects), and with freshness statements (`heartbeats`). What is missing is requested from
//! origins through `origin_client`: one query per service and one fill per object at a time. `oci_api` answers clients of
//! registries in the same way, and `peer_api` edges that use this one as a shield. `origin_follower` applies the event streams of the origins to the catalog. `observed` is what agents
//! say that they run.

mod access;
mod agent_api;
mod api_error;
mod catalog;
pub mod check;
pub mod config;
pub mod doctor;
mod edge;
mod heartbeats;
mod history;
mod listener;
mod metrics;
mod observed;
mod oci_api;
mod operator_api;
mod origin_client;
mod origin_follower;
mod peer_api;
mod reload;
mod request_headers;
mod reset_key;
mod self_api;
mod staged_offers;
mod status;
mod summary;
mod version;

pub use config::Config;
pub use edge::{Running, start};
pub use metrics::families;
