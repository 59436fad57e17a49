//! The OCI form of a version: what an edge answers to clients of the OCI distribution API (`/v2/`).

use serde::{Deserialize, Serialize};

use crate::digest::{ObjectDigest, Sha256};
use crate::oci_manifest::Content;
pub use crate::oci_manifest::{EMPTY_CONFIG, EMPTY_CONFIG_TYPE, MANIFEST_TYPE};
use crate::revision_id::RevisionId;
use crate::source_version::SourceVersion;

/// The largest manifest that is served, in bytes: it stands in the descriptor. An artifact with a larger one is served as files.
pub const MAX_MANIFEST_BYTES: usize = 64 << 10;

/// The artifact type of services of files.
pub const TARBALL_ARTIFACT_TYPE: &str = "application/vnd.weir.tarball.v1";

/// The type of the layer of services of files: their gzip representation.
pub const TARBALL_LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The type of the config of a chart: its `Chart.yaml` as JSON.
pub const CHART_CONFIG_TYPE: &str = "application/vnd.cncf.helm.config.v1+json";

/// The tag of the version in force.
pub const LATEST: &str = "latest";

/// The tag of the staged version while there is one, and otherwise of the version in force.
pub const STAGED: &str = "staged";

/// The digits of a commit, or of the hash of a composed service's parts, that are a tag.
const COMMIT_DIGITS: usize = 12;

/// The manifest of a version, and the blobs that it names. Origins write it once for a version and keep it when the version
/// is published again, so its digest stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciForm {
    /// The media type of the manifest.
    pub media_type: String,
    /// SHA-256 of the manifest.
    pub sha256: Sha256,
    /// The manifest, byte for byte.
    pub manifest: String,
    /// Config and layers, without [`EMPTY_CONFIG`].
    pub blobs: Vec<OciBlob>,
    /// The manifest is that of an upstream. Otherwise an origin made it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_upstream: bool,
    /// Signatures and attestations of the upstream that the origin verified.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// A manifest about the manifest of a version, with its blobs, as it is in the descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The manifest, byte for byte.
    pub manifest: String,
    /// The tag by which cosign finds it: `sha256-<hex>.sig` or `.att`. `None`: it is a referrer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The blobs that it names, without the empty config.
    pub blobs: Vec<String>,
}

/// A manifest that is published as its upstream has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamManifest {
    /// Its media type.
    pub media_type: String,
    /// The manifest, byte for byte.
    pub text: String,
    /// Signatures and attestations that were verified.
    pub attachments: Vec<Attachment>,
}

/// A blob of a manifest, stored like the body of a representation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciBlob {
    /// SHA-256 of the blob.
    pub sha256: Sha256,
    /// The media type in the manifest.
    pub media_type: String,
    /// The digest of the only frame, which is the blob; or of the manifest of its frames.
    pub digest: ObjectDigest,
    /// Bytes.
    pub size: u64,
    /// The number of frames, at least one.
    pub frames: u32,
}

impl OciForm {
    /// The form with this manifest, which has at most [`MAX_MANIFEST_BYTES`].
    pub fn new(media_type: &str, manifest: String, blobs: Vec<OciBlob>) -> Self {
        let (media_type, sha256) = (media_type.to_owned(), Sha256::of(manifest.as_bytes()));
        Self { media_type, sha256, manifest, blobs, is_upstream: false, attachments: Vec::new() }
    }

    /// Whether the manifest has the digest and the size that it should, and all types can stand in a header.
    pub(crate) fn is_sound(&self) -> bool {
        let types = self.blobs.iter().map(|blob| &blob.media_type).chain([&self.media_type]);
        self.manifest.len() <= MAX_MANIFEST_BYTES
            && self.sha256 == Sha256::of(self.manifest.as_bytes())
            && self.blobs.iter().all(|blob| blob.frames > 0)
            && types.into_iter().all(|media_type| media_type.bytes().all(|b| (b' '..=b'~').contains(&b)))
    }

    /// Names the manifest.
    pub(crate) fn content(&self) -> Content<'_> {
        Content::new(&self.media_type, &self.sha256, self.manifest.len() as u64)
    }

    /// The blob with this digest, if the manifest names it and it is stored.
    pub fn blob(&self, sha256: &Sha256) -> Option<&OciBlob> {
        self.blobs.iter().find(|blob| blob.sha256 == *sha256)
    }
}

/// The tags of a version besides [`LATEST`] and [`STAGED`], the most telling one first: the version of a chart, an artifact or a tag of Git,
/// and the beginning of the commit, or of the hash of its parts.
pub fn tags(revision_id: &RevisionId, version: Option<&SourceVersion>) -> Vec<String> {
    let version = version.map(|version| version.as_str().replace('+', "_"));
    let commit = revision_id.commit();
    let parts = || revision_id.as_str().strip_prefix("parts:");
    let hash = commit.as_ref().map(|commit| commit.as_str()).or_else(parts);
    // Without a letter it would be the highest of all versions to consumers that read versions loosely.
    let is_no_number = |digits: &&str| !digits.bytes().all(|b| b.is_ascii_digit());
    let hash = hash.and_then(|hash| hash.get(..COMMIT_DIGITS)).filter(is_no_number).map(str::to_owned);
    version.filter(|tag| is_tag(tag) && !is_reserved(tag)).into_iter().chain(hash).collect()
}

/// Whether a text is a tag: 1 to 128 of `A-Z`, `a-z`, `0-9`, `_`, `.`, `-`, the first none of `.` and `-` (distribution-spec
/// 1.1, "Pulling manifests").
pub fn is_tag(text: &str) -> bool {
    let head = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(head)
        && text.bytes().all(|b| head(b) || matches!(b, b'.' | b'-'))
}

/// Whether a tag has a meaning of its own, so that no version is one.
fn is_reserved(tag: &str) -> bool {
    matches!(tag, LATEST | STAGED) || tag.starts_with("sha256-")
}

/// Whether the name of a service is a component of a repository's name: `a-z0-9` with `.`, `_`, `__` or hyphens between them
/// (distribution-spec 1.1, "Pulling manifests").
pub fn is_repository_component(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut separators = name.split(|char: char| is_plain(u8::try_from(char).unwrap_or(0)));
    let ends = name.bytes().next().is_some_and(is_plain) && name.bytes().last().is_some_and(is_plain);
    ends && separators.all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_the_tags_that_clients_look_for() {
        let (commit, hash) = ("c".repeat(40), "ab".repeat(32));
        for (revision_id, version, expected) in [
            (format!("sha1:{commit}"), None, vec!["cccccccccccc"]),
            (format!("sha1:{commit}"), Some("v1.2.0"), vec!["v1.2.0", "cccccccccccc"]),
            (format!("helm:1.2.3+up.4+sha256:{hash}"), Some("1.2.3+up.4"), vec!["1.2.3_up.4"]),
            (format!("oci:sha256:{hash}"), Some("latest"), vec![]),
            (format!("oci:sha256:{hash}"), Some("sha256-00.sig"), vec![]),
            (format!("oci:sha256:{hash}"), Some(".1"), vec![]),
            (format!("parts:{hash}"), None, vec!["abababababab"]),
            (format!("sha1:{}", "7".repeat(40)), None, vec![]),
        ] {
            let source_version = version.map(|version| version.parse().unwrap());
            assert_eq!(
                tags(&revision_id.parse().unwrap(), source_version.as_ref()),
                expected,
                "{revision_id} {version:?}"
            );
        }
    }

    #[test]
    fn tags_and_names_are_those_of_the_specification() {
        for tag in ["latest", "_a", "1.2.3_up-4", &"x".repeat(128)] {
            assert!(is_tag(tag), "{tag}");
        }
        for tag in ["", ".a", "-a", "a+b", "a/b", "ä", &"x".repeat(129)] {
            assert!(!is_tag(tag), "{tag}");
        }
        for name in ["a", "shop-prod", "a.b", "a_b", "a__b", "a---b", "0"] {
            assert!(is_repository_component(name), "{name}");
        }
        for name in ["", "a..b", "a-", "a.", "a_", "a___b", "a.-b", "A", "ä", "aä", "-a"] {
            assert!(!is_repository_component(name), "{name}");
        }
    }
}
