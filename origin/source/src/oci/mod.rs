//! A client for OCI registries (OCI distribution specification 1.1, and Docker's registry).
//!
//! [`Artifacts`] lists what services follow ([`ArtifactRef`]). `selection` decides which manifest and which layer that is.
//! [`Registry`] requests tags, manifests and blobs of the repositories of one registry. It answers the registry's challenges
//! ([`Tokens`]), and reads everything within bounds. Nothing that a registry says is trusted but by its digest.

mod artifact_ref;
mod attachments;
mod authorization;
mod challenge;
mod cosign;
mod error;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod link;
mod listing;
mod manifest;
mod registry;
mod selection;
mod tags;
#[cfg(test)]
mod tests;
mod token;
mod whole;

pub(crate) use artifact_ref::ArtifactRef;
pub(crate) use attachments::attachments;
pub(crate) use cosign::verify as verify_cosign;
pub(crate) use error::{Failures, RegistryError, denied};
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_registry_words;
pub(crate) use listing::{Artifact, Artifacts, Selector};
pub(crate) use manifest::{Descriptor, Document, parse_digest};
pub(crate) use registry::{Named, Registry, Resolved, is_reference};
pub(crate) use token::Tokens;
pub(crate) use weir_upstream::OciName;
pub(crate) use whole::{MAX_OTHER_BYTES, WholeManifest};
