//! Sources: a source follows an upstream, and reads the contents of which tarballs are built. Begin at [`Source`].
//!
//! The kind of a repository decides what the `ref` of a service means (`followed`) and which implementation follows the
//! upstream (`dispatch`). Nothing above this crate knows the kinds; what only a mirror of Git can do is behind
//! [`Source::mirror`].
//!
//! The crate knows how an upstream is reached (`weir-upstream`), mirrors of Git (`weir-git`) and how tarballs are made of
//! contents, and neither a store nor who publishes: it resolves a [`Service`] to a [`Candidate`], and what it wants to keep elsewhere goes through
//! functions of its caller.

mod archive;
mod artifact;
mod candidate;
mod config;
mod context;
mod cosign;
mod dispatch;
mod encoding;
mod failure;
mod followed;
mod git;
mod helm;
mod interface;
mod metrics;
mod oci;
mod oci_service;
mod oci_source;
mod page;
mod part_tarballs;
mod passed_over;
mod pin;
mod ref_text;
mod service;
mod standing;
mod tree;

#[cfg(feature = "fuzzing")]
pub use archive::fuzz_archive;
pub use candidate::Candidate;
pub use config::{PartConfig, ServiceConfig};
pub use context::{SourceContext, fetch_memory};
pub use cosign::PublicKey;
#[cfg(feature = "fuzzing")]
pub use cosign::fuzz_cosign;
pub use dispatch::Source;
pub use failure::{LeftOutRef, PollFailure, RetryPolicy, ServiceFailure};
pub use followed::Followed;
pub use git::{GitSource, LfsFetchRequest, LfsFetchResult, MaintenanceRequest};
#[cfg(feature = "fuzzing")]
pub use helm::fuzz_helm_index;
pub use helm::{ChartName, ChartNameError};
pub(crate) use interface::RetainedRevisions;
pub use interface::{ListRequest, ListTarget, PollOutcome, PollRequest, ResolvedServices, RevisionLookup};
pub use metrics::SourceMetrics;
#[cfg(feature = "fuzzing")]
pub use oci::fuzz_registry_words;
pub use oci_source::{OciChoice, OciSource};
pub use part_tarballs::PartTarballs;
pub use pin::Pin;
pub use ref_text::{RefText, RefTextError};
pub use service::{Condition, Lost, PartOf, Service, WithoutPin};
pub use standing::{Admission, Age, StepBack};
pub use tree::Tree;
