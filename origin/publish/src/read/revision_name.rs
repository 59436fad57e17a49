//! Pure: what people call a revision, in requests of operators.

use weir_protocol::digest::TarballDigest;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;

/// The fewest digits of a hash that name a revision.
pub const MIN_PREFIX: usize = 7;

/// The version that is published.
pub const CURRENT: &str = "current";

/// The one that was published before it, with other content.
pub const PREVIOUS: &str = "previous";

/// What a publication is called by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Called<'a> {
    pub(crate) revision: &'a RevisionId,
    pub(crate) version: Option<&'a SourceVersion>,
    pub(crate) digest: Option<&'a TarballDigest>,
}

impl Called<'_> {
    /// Whether `name` is its version, its revision id, or begins its digest or the hash of its revision.
    pub(crate) fn is(self, name: &str) -> bool {
        self.version.is_some_and(|version| version.as_str() == name)
            || self.revision.as_str() == name
            || self.begins(name)
    }

    /// Whether `name` has at least [`MIN_PREFIX`] digits, with which the digest or the hash begins.
    pub(crate) fn begins(self, name: &str) -> bool {
        let of_digest = name.strip_prefix("b3-");
        let digits = of_digest.unwrap_or(name);
        let hash = self.revision.as_str().rsplit(':').next().unwrap_or_default();
        digits.len() >= MIN_PREFIX
            && digits.bytes().all(|b| b.is_ascii_hexdigit())
            && (of_digest.is_none() && hash.starts_with(digits)
                || self.digest.is_some_and(|digest| digest.hex().starts_with(digits)))
    }
}
