//! Revision ids, for any kind of source.

use crate::commit_id::CommitId;
use crate::text_type::{checked_text, truncated};

/// The digits of a hash for display.
const SHORT_DIGITS: usize = 12;

/// The longest revision id, in bytes.
pub const MAX_REVISION_ID_BYTES: usize = 200;

checked_text! {
    /// `<algorithm>:<id>`: `sha1:<40 hex>` or `sha256:<64 hex>` for a Git commit. Other kinds of sources have other
    /// algorithms, and their ids may have colons. Ids are compared as text.
    RevisionId, is_valid, RevisionIdError, |text| RevisionIdError(truncated(text))
}

/// The text is not a revision id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a revision id: expected `<algorithm>:<id>` of `A-Z`, `a-z`, `0-9`, `.`, `_`, `+`, `-` (and `:` in the \
     id), at most {MAX_REVISION_ID_BYTES} bytes"
)]
pub struct RevisionIdError(String);

impl From<&CommitId> for RevisionId {
    fn from(commit: &CommitId) -> Self {
        let algorithm = if commit.as_str().len() == 40 { "sha1" } else { "sha256" };
        Self(format!("{algorithm}:{commit}").into())
    }
}

impl RevisionId {
    /// The commit, if the revision is one of Git.
    pub fn commit(&self) -> Option<CommitId> {
        let (_, id) = self.0.split_once(':')?;
        id.parse().ok().filter(|commit| Self::from(commit) == *self)
    }

    /// For display: the first twelve digits of a commit. Of other ids all but their last hash, of which it has as many.
    pub fn short(&self) -> &str {
        if self.commit().is_some() {
            let start = self.0.find(':').map_or(0, |colon| colon + 1);
            return &self.0[start..start + SHORT_DIGITS];
        }
        let start = self.0.rfind(':').map_or(0, |colon| colon + 1);
        &self.0[..self.0.len().min(start + SHORT_DIGITS)]
    }
}

fn is_valid(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'+' | b'-');
    text.len() <= MAX_REVISION_ID_BYTES
        && text.contains(':')
        && text.split(':').all(|part| !part.is_empty() && part.bytes().all(plain))
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
    fn only_a_commit_is_one_and_all_ids_have_a_short_form() {
        let (hex, sha1) = ("ab".repeat(32), "c".repeat(40));
        for (id, commit, short) in [
            (format!("sha1:{sha1}"), Some(&sha1), "cccccccccccc"),
            (format!("sha256:{hex}"), Some(&hex), "abababababab"),
            (format!("sha1:{hex}"), None, "sha1:abababababab"),
            (format!("sha256:{sha1}"), None, "sha256:cccccccccccc"),
            (format!("oci:sha256:{hex}"), None, "oci:sha256:abababababab"),
            (format!("helm:1.2.3+sha256:{hex}"), None, "helm:1.2.3+sha256:abababababab"),
            ("helm:1".to_owned(), None, "helm:1"),
        ] {
            let id: RevisionId = id.parse().unwrap();
            assert_eq!((id.commit().map(|commit| commit.to_string()).as_ref(), id.short()), (commit, short));
        }
    }

    #[test]
    fn malformed_ids_are_refused() {
        for text in ["oci:sha256-00.ff_1+a", "oci:sha256:00", "helm:1.0.0-rc.1+a.b+sha256:ff"] {
            assert!(text.parse::<RevisionId>().is_ok(), "{text}");
        }
        for text in
            ["", "sha1", ":a", "sha1:", "sha1:a b", "sha1:a:", "a::b", "sha1:ä", &format!("a:{}", "a".repeat(200))]
        {
            assert!(text.parse::<RevisionId>().is_err(), "{text}");
        }
    }
}
