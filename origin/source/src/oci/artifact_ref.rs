//! What a service follows in the repository of an artifact: a tag, a range of versions, or a digest.

use std::fmt;

use weir_protocol::digest::Sha256;
use weir_upstream::{SEMVER, VersionRange};

use super::manifest::parse_digest;
use super::registry::is_tag;

/// The `ref` of a service that names none, and the tag for which it stands.
const DEFAULT_REF: &str = "HEAD";
const DEFAULT_TAG: &str = "latest";

const SHA256: &str = "sha256:";

/// Which version of an artifact is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArtifactRef {
    Tag(Box<str>),
    /// The tag with the highest version.
    Range(VersionRange),
    /// The manifest with this digest.
    Digest(Sha256),
}

impl ArtifactRef {
    /// Reads the `ref` of a service.
    ///
    /// # Errors
    /// It is neither, with the reason for whoever wrote it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text == DEFAULT_REF {
            return Ok(Self::Tag(DEFAULT_TAG.into()));
        }
        if let Some(range) = text.strip_prefix(SEMVER) {
            let range: VersionRange = range.trim().parse().map_err(|error| format!("ref = `semver:…`: {error}"))?;
            let prefix = range.prefix();
            if !prefix.is_empty() && !is_tag(prefix) {
                return Err(format!("ref = `{text}`: no tag of a registry begins with `{prefix}`"));
            }
            return Ok(Self::Range(range));
        }
        if text.starts_with(SHA256) {
            let digest = parse_digest(text).map(Self::Digest);
            return digest
                .ok_or_else(|| format!("ref = `{text}` is not a digest: `sha256:` and 64 lower-case hex digits"));
        }
        if is_tag(text) {
            return Ok(Self::Tag(text.into()));
        }
        Err(format!(
            "ref = `{text}` is neither a tag of a registry, nor `semver:` with a range of versions, nor `sha256:` with a \
             digest"
        ))
    }
}

/// As a `ref`.
impl fmt::Display for ArtifactRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Range(range) => write!(f, "{SEMVER}{range}"),
            Self::Digest(digest) => write!(f, "{SHA256}{digest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_is_a_tag_or_a_range_or_a_digest() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        for (text, shown) in [
            ("HEAD", "latest"),
            ("stable", "stable"),
            ("v1.0.0_2", "v1.0.0_2"),
            ("semver: >=1.0.0 <2.0.0", "semver:>=1.0.0 <2.0.0"),
            ("semver:api-1.x", "semver:api-1.x"),
            (&digest, &digest),
        ] {
            let read = ArtifactRef::parse(text).unwrap();
            assert_eq!(read.to_string(), shown);
            assert_eq!(ArtifactRef::parse(shown).unwrap(), read);
        }
        for (text, reason) in [
            ("refs/heads/main", "is neither a tag of a registry, nor `semver:`"),
            ("v1@sha256:ab", "is neither a tag"),
            (".v1", "is neither a tag"),
            (&"x".repeat(129), "is neither a tag"),
            ("sha256:AB", "is not a digest: `sha256:` and 64"),
            ("semver:^", "is not a range of versions"),
            ("semver:api/1.x", "no tag of a registry begins with `api/`"),
        ] {
            let error = ArtifactRef::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn tags_of_signatures_are_no_versions() {
        let ArtifactRef::Range(range) = ArtifactRef::parse("semver:>=0.0.0-0").unwrap() else { panic!() };
        let hex = "12".repeat(32);
        let tags = [format!("sha256-{hex}.sig"), format!("sha256-{hex}"), "1.2.0-rc.1".into(), "1.1.0_3".into()];
        assert_eq!(range.highest(tags.iter().map(String::as_str)), Some("1.2.0-rc.1"));
    }
}
