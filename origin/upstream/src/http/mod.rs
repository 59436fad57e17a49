//! HTTP to upstreams. No other module sends requests to an upstream.

mod body;
mod client;
mod clients;
mod conditional;
mod downloads;
mod errors;
mod min_rate;
mod redirects;
mod report;
mod retry_after;
mod session;
#[cfg(any(test, feature = "testing"))]
pub mod test_server;

pub use body::{Body, BodyError};
pub use client::{Client, IDENTITY};
pub use conditional::Validators;
pub use min_rate::{MinRate, TooSlow};
#[cfg(feature = "fuzzing")]
pub(crate) use redirects::fuzz_redirect;
pub use redirects::{display_origin, follow_all as follow_redirects, same_host, same_origin};
#[cfg(feature = "fuzzing")]
pub(crate) use retry_after::parse as parse_retry_after;
pub use session::UpstreamSession;

/// The user agent of requests that are not of Git.
pub const USER_AGENT: &str = concat!("weir-origin/", env!("CARGO_PKG_VERSION"));
