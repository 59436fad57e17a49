//! How an upstream is reached, bounded and judged, whatever its kind. Begin at [`Upstream`].
//!
//! - **Defined**: [`RepositoryConfig`] is a `[[repository]]`, [`UpstreamsConfig`] is `[upstreams]`. [`SourceKind`] says which
//!   keys and URLs a kind has; what else depends on the kind is above.
//! - **Reached**: [`Endpoint`] is the parsed URL, [`EgressPolicy`] says which hosts and addresses are allowed. [`http`] sends
//!   all requests of HTTP, [`outside_program`] starts all programs. What goes wrong is an [`UpstreamError`].
//! - **Bounded**: by the limits of the upstream, and by the disk of the [`DataDir`] ([`free_disk`]). [`FetchProgress`] shows
//!   how far a fetch is.
//! - **Judged**: [`signatures`] are verified by programs. [`VersionRange`] says which tag is the highest.
//!
//! The crate has the keys and limits of all kinds, but opens neither a repository of Git nor an archive, and knows no service:
//! what follows an upstream is above it.

mod config;
mod data_dir;
mod egress_policy;
mod endpoint;
mod error;
pub mod free_disk;
#[cfg(feature = "fuzzing")]
mod fuzz;
pub mod http;
mod kind;
mod layer_selector;
mod loose_version;
pub mod outside_program;
mod platform_name;
mod progress;
mod range;
mod redirects;
mod runtime;
mod secret;
mod server_report;
mod shown;
pub mod signatures;
mod upstream;
mod user_info;

pub use config::{DEFAULT_MAX_OBJECT, DefinedBy, RepositoryConfig, SignedBy, UpstreamsConfig, VerifyConfig};
pub use data_dir::{DataDir, DataDirError, remove_siblings, without_path};
pub use egress_policy::{EgressPolicy, Hosts};
pub use endpoint::{Address, Endpoint, OciAddress, OciName, Scheme, SshAddress};
pub use error::{NotAllowed, Server, UpstreamError};
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_upstream_words;
pub use kind::SourceKind;
pub use layer_selector::{LayerOperation, LayerSelector};
pub use loose_version::{is_canonical, loose_version};
pub use platform_name::{PlatformName, PlatformNameError};
pub use progress::{ActivePoll, FetchProgress, FetchSnapshot, Phase};
pub use range::{SEMVER, VersionRange, VersionRangeError, parse_version};
pub use redirects::Redirects;
pub use server_report::{ServerReport, one_line};
pub use shown::shown;
pub use upstream::Upstream;
pub use user_info::without_user_info;
