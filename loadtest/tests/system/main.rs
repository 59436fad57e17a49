//! Weir as a whole: a real Git server, real TLS and QUIC, the real binaries, real signals.

mod access;
mod assignments;
mod broken_refs;
mod cluster;
mod deltas;
mod documentation;
mod first_readers;
mod fleet;
mod following;
mod fuzz_seeds;
mod gzip;
mod kills;
mod log_fields;
mod one_service;
mod operators;
mod outages;
mod polls;
mod push;
mod reload;
mod rolling_restart;
mod rot;
mod rotation;
mod signing;
mod site;
mod slow_readers;
mod three_processes;
