//! The id of a revision of a repository, whatever kind of source the repository is.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::commit_id::CommitId;

/// The longest revision id, in bytes.
pub const MAX_REVISION_ID_BYTES: usize = 200;

/// `<algorithm>:<id>`: `sha1:<40 hex>` or `sha256:<64 hex>` for a commit of Git. Other kinds of sources have algorithms of
/// their own, and a reader compares ids as text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RevisionId(Arc<str>);

/// The text was not a revision id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a revision id: expected `<algorithm>:<id>` of `A-Z`, `a-z`, `0-9`, `.`, `_`, `+`, `-`, at most \
     {MAX_REVISION_ID_BYTES} bytes"
)]
pub struct RevisionIdError(String);

impl RevisionId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&CommitId> for RevisionId {
    fn from(commit: &CommitId) -> Self {
        let algorithm = if commit.as_str().len() == 40 { "sha1" } else { "sha256" };
        Self(format!("{algorithm}:{commit}").into())
    }
}

impl FromStr for RevisionId {
    type Err = RevisionIdError;

    fn from_str(text: &str) -> Result<Self, RevisionIdError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'+' | b'-');
        let well_formed = text.len() <= MAX_REVISION_ID_BYTES
            && text.split_once(':').is_some_and(|(algorithm, id)| {
                [algorithm, id].iter().all(|part| !part.is_empty() && part.bytes().all(plain))
            });
        if well_formed { Ok(Self(text.into())) } else { Err(RevisionIdError(text.chars().take(80).collect())) }
    }
}

impl fmt::Display for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::serde_as_text!(RevisionId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_names_its_hash_function() {
        let (sha1, sha256) = ("a".repeat(40), "b".repeat(64));
        assert_eq!(RevisionId::from(&sha1.parse().unwrap()).as_str(), format!("sha1:{sha1}"));
        assert_eq!(RevisionId::from(&sha256.parse().unwrap()).as_str(), format!("sha256:{sha256}"));
    }

    #[test]
    fn malformed_ids_are_refused() {
        assert!("oci:sha256-00.ff_1+a".parse::<RevisionId>().is_ok());
        for text in ["", "sha1", ":a", "sha1:", "sha1:a b", "sha1:a:b", "sha1:ä", &format!("sha1:{}", "a".repeat(200))]
        {
            assert!(text.parse::<RevisionId>().is_err(), "{text}");
        }
    }
}
