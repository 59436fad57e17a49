//! Sources: a source follows an upstream, and reads the contents of which tarballs are built. Begin at `Source`.
//!
//! All kinds share [`Endpoint`] (the parsed URL), [`EgressPolicy`] (which hosts and addresses are allowed) and [`Upstream`]
//! (credentials and limits). The kind of a repository decides what the `ref` of a service means (`followed`) and which
//! implementation follows the upstream (`dispatch`). No module outside of this one knows the kinds.

mod archive;
mod artifact;
mod candidate;
mod config;
mod context;
mod data_dir;
mod dispatch;
mod egress_policy;
mod endpoint;
mod error;
mod failure;
mod followed;
pub(crate) mod free_disk;
#[cfg(feature = "fuzzing")]
mod fuzz;
pub mod git;
mod helm;
pub(crate) mod http;
mod interface;
mod kind;
mod metrics;
mod oci;
mod outside_program;
mod progress;
pub mod range;
mod redirects;
pub mod revision;
mod runtime;
pub(crate) mod secret;
mod service;
mod shown;
mod signatures;
mod tree;
mod upstream;

#[cfg(feature = "fuzzing")]
pub use archive::fuzz_archive;
pub(crate) use candidate::Candidate;
pub use config::{DefinedBy, PartConfig, RepositoryConfig, ServiceConfig, SignedBy, UpstreamsConfig, VerifyConfig};
pub(crate) use context::{SourceContext, fetch_memory};
pub(crate) use data_dir::DataDir;
pub(crate) use dispatch::Source;
pub use egress_policy::{EgressPolicy, Hosts};
pub use endpoint::Endpoint;
pub(crate) use endpoint::{Address, Scheme, SshAddress};
pub use error::{NotAllowed, UpstreamError};
pub use failure::LeftOutRef;
pub(crate) use failure::{PollFailure, RetryPolicy, ServiceFailure};
pub(crate) use followed::Followed;
pub use followed::{RefText, RefTextError};
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_upstream_words;
pub(crate) use git::requests::{
    BundleError, BundleRequest, Bundled, HydrateRequest, LfsFetchRequest, LfsFetchResult, MaintenanceRequest, ReadPart,
    WrittenBundle,
};
pub(crate) use git::stored_mirror::{Bundle, MirrorManifest, Part, StoredLfsObject};
#[cfg(feature = "fuzzing")]
pub use helm::fuzz_helm_index;
pub use helm::{ChartName, ChartNameError};
pub(crate) use interface::{ListRequest, ListTarget, PollOutcome, PollRequest, ResolvedServices, RetainedRevisions};
pub use kind::SourceKind;
pub(crate) use metrics::SourceMetrics;
#[cfg(feature = "fuzzing")]
pub use oci::fuzz_registry_words;
pub use oci::{LayerOperation, LayerSelector, PlatformName, PlatformNameError};
pub use progress::{FetchProgress, FetchSnapshot};
pub use redirects::Redirects;
pub(crate) use service::Service;
pub use service::{Condition, Lost, WithoutPin};
pub(crate) use signatures::PublicKey;
#[cfg(feature = "fuzzing")]
pub use signatures::fuzz_cosign;
pub(crate) use tree::Tree;
pub(crate) use upstream::without_user_info;
pub use upstream::{
    DEFAULT_MAX_ARTIFACT, DEFAULT_MAX_CHART, DEFAULT_MAX_INDEX, DEFAULT_MAX_LFS_OBJECT, DEFAULT_MAX_MIRROR,
    DEFAULT_MAX_OBJECT, DEFAULT_MAX_OBJECTS, DEFAULT_MAX_PACK, DEFAULT_MAX_REFS, DEFAULT_MAX_TAGS,
    DEFAULT_MAX_UNPACKED, DEFAULT_MIN_RATE, DEFAULT_STALL_TIMEOUT, Upstream,
};
pub use weir_model::ServerClocks;
