//! Listeners, against peers that write HTTP/2 frames and QUIC streams by hand and may violate the protocol.

#![allow(clippy::too_many_lines, reason = "a scenario is told in one piece")]
#![allow(clippy::disallowed_methods, reason = "queues of tests end with the test")]

mod access_log;
mod bounds;
mod control_streams;
mod draining;
mod http2;
mod http2_floods;
mod over_http2;
mod peer;
mod relay;
mod requests;
mod site;
mod slow_clients;
mod streams;
mod wire;
