//! The HTTP/3 server, against a peer that writes QUIC streams by hand and keeps to no rule it is not told to.

mod control_streams;
mod draining;
mod peer;
mod relay;
mod requests;
mod site;
mod streams;
mod wire;
