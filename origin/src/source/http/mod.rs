//! HTTP to upstreams. No other module sends requests to an upstream.

mod client;
mod clients;
mod downloads;
mod errors;
mod redirects;
mod retry_after;
mod session;

pub(crate) use client::{Client, IDENTITY};
pub(crate) use redirects::display_origin;
#[cfg(feature = "fuzzing")]
pub(crate) use redirects::fuzz_redirect;
#[cfg(feature = "fuzzing")]
pub(crate) use retry_after::parse as parse_retry_after;
pub(crate) use session::UpstreamSession;
