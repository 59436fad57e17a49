//! What operators write for an origin to follow.

use weir_git::revision::Revision;

/// What is read is written so that it is read back.
pub(crate) fn revision(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(revision) = text.parse::<Revision>() else { return };
    assert_eq!(revision.to_string().parse().as_ref(), Ok(&revision), "{text:?}");
    for name in ["refs/heads/main", "refs/tags/v1.2.3", "refs/pull/7/head"] {
        let _ = revision.may_follow(name);
    }
}
