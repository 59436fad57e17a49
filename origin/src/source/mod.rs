//! Sources: a source follows an upstream, and reads the contents of which tarballs are built. Begin at `Source`.
//!
//! All kinds share [`Endpoint`] (the parsed URL), [`EgressPolicy`] (which hosts and addresses are allowed) and [`Upstream`]
//! (credentials and limits). Another kind implements `Source`, and is chosen by its URL in `open` and in [`Endpoint`]; no
//! other module knows the kinds.

mod context;
mod egress_policy;
mod endpoint;
mod error;
mod failure;
/// The second kind, for tests: in debug builds only.
#[cfg(debug_assertions)]
pub mod folder;
#[cfg(feature = "fuzzing")]
mod fuzz;
pub mod git;
pub(crate) mod http;
mod interface;
mod progress;
mod redirects;
mod runtime;
pub(crate) mod secret;
mod upstream;

use std::sync::Arc;

pub use crate::clock::ServerClocks;
pub(crate) use context::SourceContext;
pub use egress_policy::{EgressPolicy, Hosts};
pub use endpoint::Endpoint;
pub(crate) use endpoint::{Address, Scheme, SshAddress};
pub use error::{NotAllowed, UpstreamError};
pub use failure::LeftOutRef;
pub(crate) use failure::{PollFailure, RetryPolicy, ServiceFailure};
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_upstream_words;
pub(crate) use interface::{
    BundleError, BundleRequest, Bundled, HydrateRequest, LfsFetchRequest, LfsFetchResult, ListRequest, ListTarget,
    MaintenanceRequest, PollOutcome, PollRequest, ReadPart, ResolvedServices, RetainedRevisions, Source, WrittenBundle,
};
pub use progress::{FetchProgress, FetchSnapshot};
pub use redirects::Redirects;
pub(crate) use upstream::without_user_info;
pub use upstream::{
    DEFAULT_MAX_LFS_OBJECT, DEFAULT_MAX_MIRROR, DEFAULT_MAX_OBJECT, DEFAULT_MAX_OBJECTS, DEFAULT_MAX_PACK,
    DEFAULT_MAX_REFS, DEFAULT_MIN_RATE, DEFAULT_STALL_TIMEOUT, Upstream,
};

use crate::config::RepositoryConfig;

/// Creates the source of a repository, of the kind of its URL. It opens no file yet.
pub(crate) fn open(config: &RepositoryConfig, context: Arc<SourceContext>) -> Arc<dyn Source> {
    #[cfg(debug_assertions)]
    if let Some(root) = config.url.folder() {
        return Arc::new(folder::FolderSource::new(root));
    }
    Arc::new(git::GitSource::new(config, context))
}
