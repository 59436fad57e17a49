//! The manifests that Weir writes (OCI image specification 1.1). Everybody writes the same bytes: the order of the fields is
//! fixed, and annotations are sorted.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::digest::Sha256;

/// The type of manifests that Weir makes.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// The type of [`EMPTY_CONFIG`].
pub const EMPTY_CONFIG_TYPE: &str = "application/vnd.oci.empty.v1+json";

/// The empty descriptor of the image specification: a blob that is not stored.
pub const EMPTY_CONFIG: &[u8] = b"{}";

/// A manifest.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WrittenManifest<'a> {
    schema_version: u8,
    media_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_type: Option<&'a str>,
    config: Content<'a>,
    layers: Vec<Content<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<Content<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'a str, String>,
}

/// A content descriptor: it names a blob, or a manifest.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Content<'a> {
    media_type: &'a str,
    digest: String,
    size: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'a str, String>,
}

impl<'a> Content<'a> {
    /// Names a content.
    pub fn new(media_type: &'a str, sha256: &Sha256, size: u64) -> Self {
        Self { media_type, digest: format!("sha256:{sha256}"), size, annotations: BTreeMap::new() }
    }

    /// Names these bytes.
    pub fn of(media_type: &'a str, bytes: &[u8]) -> Self {
        Self::new(media_type, &Sha256::of(bytes), bytes.len() as u64)
    }

    /// The same with an annotation.
    #[must_use]
    pub fn annotated(mut self, name: &'a str, value: String) -> Self {
        self.annotations.insert(name, value);
        self
    }
}

impl<'a> WrittenManifest<'a> {
    /// A manifest with these layers and the empty config.
    pub fn new(layers: Vec<Content<'a>>) -> Self {
        Self {
            schema_version: 2,
            media_type: MANIFEST_TYPE,
            artifact_type: None,
            config: Content::of(EMPTY_CONFIG_TYPE, EMPTY_CONFIG),
            layers,
            subject: None,
            annotations: BTreeMap::new(),
        }
    }

    /// The same with another config.
    #[must_use]
    pub fn with_config(self, config: Content<'a>) -> Self {
        Self { config, ..self }
    }

    /// The same as an artifact of this type.
    #[must_use]
    pub fn of_type(self, artifact_type: &'a str) -> Self {
        Self { artifact_type: Some(artifact_type), ..self }
    }

    /// The same, about another manifest.
    #[must_use]
    pub fn about(self, subject: Content<'a>) -> Self {
        Self { subject: Some(subject), ..self }
    }

    /// The same with an annotation.
    #[must_use]
    pub fn annotated(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.annotations.insert(name, value.into());
        self
    }

    /// The JSON text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a manifest is made of texts and numbers")
    }
}
