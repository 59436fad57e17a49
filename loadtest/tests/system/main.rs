//! Weir as a whole: a real Git server, real TLS and QUIC, the real binaries, real signals.

#![allow(clippy::too_many_lines, reason = "a scenario is told in one piece")]

mod access;
mod artifacts;
mod assignments;
mod broken_refs;
mod charts;
mod cluster;
mod deltas;
mod docker_registry;
mod documentation;
mod edges;
mod first_readers;
mod fleet;
mod following;
mod frames;
mod fuzz_seeds;
mod gzip;
mod kills;
mod log_fields;
mod lost_definitions;
mod one_service;
mod operators;
mod outages;
mod percent_rollouts;
mod polls;
mod push;
mod registry_clients;
mod reload;
mod request_ids;
mod rolling_restart;
mod rot;
mod rotation;
mod signing;
mod silent_agents;
mod site;
mod slow_readers;
mod staged_rollouts;
mod three_processes;
mod weir;
