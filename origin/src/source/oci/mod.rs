//! A client for OCI registries (OCI distribution specification 1.1, and Docker's registry).
//!
//! [`Registry`] requests tags, manifests and blobs of the repositories of one registry. It answers the registry's challenges
//! ([`Tokens`]), and reads everything within bounds. Nothing that a registry says is trusted but by its digest.

mod challenge;
mod error;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod link;
mod manifest;
mod registry;
#[cfg(test)]
mod tests;
mod token;

pub(crate) use super::endpoint::OciName;
pub(crate) use error::RegistryError;
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_registry_words;
pub(crate) use manifest::Document;
pub(crate) use registry::Registry;
pub(crate) use token::Tokens;
