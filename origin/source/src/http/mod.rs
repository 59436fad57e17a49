//! HTTP to upstreams. No other module sends requests to an upstream.

mod body;
mod client;
mod clients;
mod conditional;
mod downloads;
mod errors;
mod min_rate;
mod redirects;
mod retry_after;
mod session;
#[cfg(test)]
pub(crate) mod test_server;

pub(crate) use body::{Body, BodyError};
pub(crate) use client::{Client, IDENTITY};
pub(crate) use conditional::Validators;
pub(crate) use min_rate::MinRate;
#[cfg(feature = "fuzzing")]
pub(crate) use redirects::fuzz_redirect;
pub(crate) use redirects::{display_origin, follow_all as follow_redirects, same_host, same_origin};
#[cfg(feature = "fuzzing")]
pub(crate) use retry_after::parse as parse_retry_after;
pub(crate) use session::UpstreamSession;

/// The user agent of requests that are not of Git.
pub(crate) const USER_AGENT: &str = concat!("weir-origin/", env!("CARGO_PKG_VERSION"));
