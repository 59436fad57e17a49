//! The kinds of sources: what follows an upstream, and makes contents of what it holds, of which tarballs are built; and what
//! all kinds share: where an upstream is, where the origin may go for it, and how much it takes.
//!
//! A repository's agent holds a `Source` and knows none of the kinds. Another kind implements `Kind`, has an arm in
//! `Source` and a place in [`Endpoint`], by which its URLs are known; nothing outside has to know of it.

mod endpoint;
mod failure;
/// In debug builds alone: the second kind, for tests.
#[cfg(debug_assertions)]
pub mod folder;
pub mod git;
pub(crate) mod http_clients;
mod kind;
mod reach;
mod runtime;
pub(crate) mod secret;
mod shared;
mod upstream;
mod which;

pub use crate::source::git::mirror::{FetchProgress, FetchSnapshot};
pub use endpoint::Endpoint;
#[cfg(feature = "fuzzing")]
pub(crate) use endpoint::fuzz as fuzz_endpoint;
pub(crate) use endpoint::{Place, Scheme, SshAddress};
pub(crate) use failure::{Again, PollFailure, ServiceFailure};
pub(crate) use kind::{
    At, Commits, Fetched, Kind, ListRequest, NeededRequest, PollRequest, Polled, Resolved, UpkeepRequest,
};
pub use reach::{Hosts, NotAllowed, Reach};
pub(crate) use runtime::runtime;
pub(crate) use shared::Shared;
pub(crate) use upstream::without_user_info;
pub use upstream::{
    DEFAULT_MAX_LFS_OBJECT, DEFAULT_MAX_MIRROR, DEFAULT_MAX_OBJECT, DEFAULT_MAX_OBJECTS, DEFAULT_MAX_PACK,
    DEFAULT_MAX_REFS, DEFAULT_MIN_RATE, DEFAULT_STALL_TIMEOUT, Upstream,
};
pub(crate) use which::Source;
