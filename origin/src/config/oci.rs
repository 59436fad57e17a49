//! `[oci]`: versions for clients of the OCI distribution API.

use serde::{Deserialize, Serialize};

/// Versions for clients of the OCI distribution API, which edges answer at `/v2/`: Flux, Argo CD, Helm, `oras`, `crane`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OciConfig {
    /// What services have whose `oci` is not set, nor that of their repository. All origins of a cluster need the same. A service
    /// whose name is none of OCI has no such form then.
    pub enabled: bool,
}
