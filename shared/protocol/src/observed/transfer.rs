//! How a release arrived at an agent.

use serde::{Deserialize, Serialize};

/// How a release arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// What was sent of its tarball.
    pub kind: TransferKind,
    /// The bytes that edges sent.
    pub received_bytes: u64,
    /// The bytes of the tarball.
    pub tarball_bytes: u64,
}

/// What is sent of a tarball.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferKind {
    /// The whole body.
    Full,
    /// The difference to an older tarball.
    Delta,
    /// The frames that the agent lacks.
    Frames,
    /// A kind of a later version.
    #[serde(other)]
    Other,
}

impl TransferKind {
    /// The values of a metric's label.
    pub const LABELS: [&str; 3] = ["full", "delta", "frames"];

    /// The value of a metric's label, and of a field in logs.
    pub fn as_str(self) -> &'static str {
        Self::LABELS.get(self as usize).copied().unwrap_or("other")
    }
}
