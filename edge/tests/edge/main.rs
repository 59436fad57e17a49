//! An edge before a test origin: real TLS, real QUIC, real disk. One module per subject.

#![allow(clippy::too_many_lines, reason = "a scenario is told in one piece")]
#![allow(clippy::disallowed_methods, reason = "queues of tests end with the test")]

mod access;
mod access_shards;
mod agent_groups;
mod agent_self;
mod agent_spread;
mod catalog;
mod client;
mod cluster;
mod collapse;
mod conditions;
mod damage;
mod deltas;
mod disk_failures;
mod doctor;
mod drain;
mod explain;
mod fills;
mod following;
mod frames;
mod freshness;
mod generations;
mod gzip;
mod headers;
mod heartbeats;
mod http_semantics;
mod identity;
mod issuer_urls;
mod issuers;
mod mount;
mod observed;
mod oci;
mod oci_attached;
mod oci_clients;
mod open;
mod outage;
mod page;
mod purge;
mod readiness;
mod reload;
mod request_ids;
mod serving;
mod site;
mod staged;
mod startup;
mod store;
mod test_origin;
mod tiers;
