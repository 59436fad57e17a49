//! What operators do to a service that holds it at its version.

use std::time::SystemTime;

/// What holds a service at its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// When it was pinned.
    pub since: SystemTime,
    /// The operator who pinned it last.
    pub by: Option<String>,
    /// Why, in the operator's words.
    pub reason: Option<String>,
}
