//! Revision ids, for any kind of source.

use crate::commit_id::CommitId;
use crate::text_type::{checked_text, truncated};

/// The longest revision id, in bytes.
pub const MAX_REVISION_ID_BYTES: usize = 200;

checked_text! {
    /// `<algorithm>:<id>`: `sha1:<40 hex>` or `sha256:<64 hex>` for a Git commit. Other kinds of sources have other
    /// algorithms. Ids are compared as text.
    RevisionId, is_valid, RevisionIdError, |text| RevisionIdError(truncated(text))
}

/// The text is not a revision id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a revision id: expected `<algorithm>:<id>` of `A-Z`, `a-z`, `0-9`, `.`, `_`, `+`, `-`, at most \
     {MAX_REVISION_ID_BYTES} bytes"
)]
pub struct RevisionIdError(String);

impl From<&CommitId> for RevisionId {
    fn from(commit: &CommitId) -> Self {
        let algorithm = if commit.as_str().len() == 40 { "sha1" } else { "sha256" };
        Self(format!("{algorithm}:{commit}").into())
    }
}

fn is_valid(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'+' | b'-');
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(plain);
    text.len() <= MAX_REVISION_ID_BYTES
        && text.split_once(':').is_some_and(|(algorithm, id)| is_part(algorithm) && is_part(id))
}

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
