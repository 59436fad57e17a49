//! What every kind of source shares: where its upstream is, where the origin may go for it, and how much it takes.

mod endpoint;
pub mod git;
mod http_clients;
mod reach;
mod runtime;
pub(crate) mod secret;
mod upstream;

pub use endpoint::Endpoint;
#[cfg(fuzzing)]
pub(crate) use endpoint::fuzz as fuzz_endpoint;
pub(crate) use endpoint::{Place, Scheme, SshAddress};
pub use http_clients::HttpClients;
pub use reach::{Hosts, NotAllowed, Reach};
pub(crate) use runtime::runtime;
pub(crate) use upstream::without_user_info;
pub use upstream::{
    DEFAULT_LOWEST_RATE, DEFAULT_MAX_LFS_OBJECT, DEFAULT_MAX_MIRROR, DEFAULT_MAX_OBJECT, DEFAULT_MAX_OBJECTS,
    DEFAULT_MAX_PACK, DEFAULT_MAX_REFS, DEFAULT_STALL_TIMEOUT, Upstream,
};
