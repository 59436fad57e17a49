//! Sources: a source follows an upstream, and reads the contents of which tarballs are built. Begin at [`Source`].
//!
//! All kinds share [`Endpoint`] (the parsed URL), [`EgressPolicy`] (which hosts and addresses are allowed) and [`Upstream`]
//! (credentials and limits). The kind of a repository decides what the `ref` of a service means (`followed`) and which
//! implementation follows the upstream (`dispatch`). Nothing outside of this crate knows the kinds; what only a mirror of Git
//! can do is behind [`Source::mirror`].
//!
//! The crate knows how tarballs are made of contents, and neither a store nor who publishes: it resolves a [`Service`] to a
//! [`Candidate`], and what it wants to keep elsewhere goes through functions of its caller.

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
pub mod free_disk;
#[cfg(feature = "fuzzing")]
mod fuzz;
pub mod git;
mod helm;
mod http;
mod interface;
mod kind;
mod layer_selector;
mod metrics;
mod oci;
mod outside_program;
mod platform_name;
mod progress;
mod range;
mod redirects;
mod ref_text;
pub mod revision;
mod runtime;
mod secret;
mod service;
mod shown;
mod signatures;
mod tree;
mod upstream;
mod user_info;

#[cfg(feature = "fuzzing")]
pub use archive::fuzz_archive;
pub use candidate::Candidate;
pub use config::{DefinedBy, PartConfig, RepositoryConfig, ServiceConfig, SignedBy, UpstreamsConfig, VerifyConfig};
pub use context::{SourceContext, fetch_memory};
pub use data_dir::{DataDir, DataDirError};
pub use dispatch::Source;
pub use egress_policy::{EgressPolicy, Hosts};
pub(crate) use endpoint::{Address, SshAddress};
pub use endpoint::{Endpoint, Scheme};
pub use error::{NotAllowed, UpstreamError};
pub use failure::{LeftOutRef, PollFailure, RetryPolicy, ServiceFailure};
pub use followed::Followed;
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_upstream_words;
pub use git::GitSource;
pub use git::bundles::INCREMENTAL_INTERVAL;
pub use git::requests::{
    BundleError, BundleRequest, Bundled, HydrateRequest, LfsFetchRequest, LfsFetchResult, MaintenanceRequest, ReadPart,
    WrittenBundle,
};
pub use git::stored_mirror::{Bundle, MirrorManifest, Part, StoredLfsObject};
#[cfg(feature = "fuzzing")]
pub use helm::fuzz_helm_index;
pub use helm::{ChartName, ChartNameError};
pub(crate) use interface::RetainedRevisions;
pub use interface::{ListRequest, ListTarget, PollOutcome, PollRequest, ResolvedServices};
pub use kind::SourceKind;
pub use layer_selector::{LayerOperation, LayerSelector};
pub use metrics::SourceMetrics;
#[cfg(feature = "fuzzing")]
pub use oci::fuzz_registry_words;
pub use platform_name::{PlatformName, PlatformNameError};
pub use progress::{FetchProgress, FetchSnapshot};
pub use redirects::Redirects;
pub use ref_text::{RefText, RefTextError};
pub use service::{Condition, Lost, PartOf, Service, WithoutPin};
pub use signatures::PublicKey;
#[cfg(feature = "fuzzing")]
pub use signatures::fuzz_cosign;
pub use tree::Tree;
pub(crate) use upstream::{
    DEFAULT_MAX_ARTIFACT, DEFAULT_MAX_CHART, DEFAULT_MAX_INDEX, DEFAULT_MAX_LFS_OBJECT, DEFAULT_MAX_MIRROR,
    DEFAULT_MAX_OBJECTS, DEFAULT_MAX_PACK, DEFAULT_MAX_REFS, DEFAULT_MAX_TAGS, DEFAULT_MAX_UNPACKED, DEFAULT_MIN_RATE,
};
pub use upstream::{DEFAULT_MAX_OBJECT, Upstream};
pub(crate) use user_info::without_user_info;
