//! Which layer a repository follows, as it is configured.

use serde::{Deserialize, Serialize};

/// Which layer of an artifact is followed, and what becomes of it. For `kind = "oci"` only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSelector {
    /// Media type of the layer. Exactly one must have it. Default: the only layer, unless it is of a container image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// What becomes of it. Default: `extract`.
    #[serde(default)]
    pub operation: LayerOperation,
}

/// What becomes of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerOperation {
    /// it is an archive (tar, plain or with gzip or zstd), whose files are published.
    #[default]
    Extract,
    /// it is published as one file, with the name of its title (`org.opencontainers.image.title`).
    Copy,
}
