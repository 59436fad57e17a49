//! The id of a Git object, as text.

use crate::text_type::{checked_text, truncated};

checked_text! {
    /// The full id of a commit: 40 (SHA-1) or 64 (SHA-256) lower-case hex digits.
    CommitId, is_valid, CommitIdError, |text| CommitIdError(truncated(text))
}

/// The text was not a full commit id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a full commit id: expected 40 or 64 lower-case hex digits")]
pub struct CommitIdError(String);

fn is_valid(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl CommitId {
    /// The first twelve digits, for display.
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}
