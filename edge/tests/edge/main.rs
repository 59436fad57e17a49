//! An edge before a test origin: real TLS, real QUIC, real disk. One module per subject.

mod client;
mod site;
mod test_origin;

mod access;
mod collapse;
mod conditions;
mod damage;
mod drain;
mod eviction;
mod explain;
mod fills;
mod following;
mod freshness;
mod generations;
mod gzip;
mod headers;
mod http_semantics;
mod identity;
mod outage;
mod past_disk;
mod purge;
mod readiness;
mod reload;
mod serving;
mod startup;
mod store;
