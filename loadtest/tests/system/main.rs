//! Weir as a whole: a real Git server, real TLS and QUIC, the real binaries, real signals.

mod access;
mod documentation;
mod fleet;
mod following;
mod kills;
mod outages;
mod push;
mod reload;
mod rolling_restart;
mod rot;
mod signing;
mod site;
mod slow_readers;
mod three_processes;
