//! Manifests and indexes of manifests, as far as they are read (OCI image specification 1.1, Docker image manifest V2).

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};
use weir_protocol::digest::Sha256;
use weir_upstream::shown;

/// The media types of manifests that are accepted: always all of them, so that a tag has one digest.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

/// The types of manifests that no program writes any more.
const WITHDRAWN: [&str; 3] = [
    "application/vnd.oci.artifact.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v1+prettyjws",
];

/// The most characters of a digest, of a media type, and of an error of the parser, in a message.
const MAX_SHOWN: usize = 200;

/// What a tag or a digest names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Document {
    Manifest(Box<Manifest>),
    Index(Index),
}

/// A manifest: the layers of an artifact or of a container image.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) artifact_type: Option<String>,
    pub(crate) config: Option<Descriptor>,
    pub(crate) layers: Vec<Descriptor>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) annotations: HashMap<String, String>,
}

/// A list of manifests: of one image for several platforms, or of what refers to a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

/// Names a blob or a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    /// As it is written. [`sha256`](Self::sha256) reads it.
    digest: String,
    pub(crate) size: u64,
    pub(crate) artifact_type: Option<String>,
    pub(crate) platform: Option<Platform>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) annotations: HashMap<String, String>,
}

/// What an image is for. Some registries write `{}`, and empty variants.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) os: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) architecture: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) variant: String,
}

/// Reads `null` as nothing.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// What tells a manifest from an index. The `Content-Type` is not a part of the bytes that have the digest.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
}

impl Descriptor {
    /// The digest.
    ///
    /// # Errors
    /// It is of another algorithm, or invalid.
    pub(crate) fn sha256(&self) -> Result<Sha256, String> {
        let invalid = || format!("the digest `{}`, which is not of SHA-256", shown(&self.digest, MAX_SHOWN));
        parse_digest(&self.digest).ok_or_else(invalid)
    }
}

/// Parses `sha256:<64 hex digits>`.
pub(crate) fn parse_digest(text: &str) -> Option<Sha256> {
    text.strip_prefix("sha256:")?.parse().ok()
}

/// Parses a manifest or an index.
///
/// # Errors
/// It is neither, with what it is.
pub(super) fn parse(bytes: &[u8]) -> Result<Document, String> {
    let invalid = |error: serde_json::Error| format!("it is invalid: {}", shown(&error.to_string(), MAX_SHOWN));
    let shape: Shape = serde_json::from_slice(bytes).map_err(invalid)?;
    match shape {
        // Readers would disagree on what it is.
        Shape { manifests: Some(_), layers: Some(_), .. } => Err("it has both layers and manifests".to_owned()),
        Shape { manifests: Some(_), .. } => serde_json::from_slice(bytes).map(Document::Index).map_err(invalid),
        Shape { layers: Some(_), .. } => serde_json::from_slice(bytes).map(Document::Manifest).map_err(invalid),
        Shape { media_type: Some(media_type), .. } if WITHDRAWN.contains(&&*media_type) => {
            Err(format!("it is `{media_type}`, which was withdrawn: push it again, with a newer program"))
        }
        Shape { media_type, .. } => {
            let media_type = shown(&media_type.unwrap_or_default(), MAX_SHOWN);
            Err(format!("it is `{media_type}`, which is not an artifact"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_told_from_an_index_by_its_bytes() {
        let hex = "ab".repeat(32);
        let descriptor = format!(r#"{{"mediaType":"a/b","digest":"sha256:{hex}","size":3,"data":"AAAA"}}"#);
        let manifest = format!(r#"{{"schemaVersion":2,"config":{descriptor},"layers":[{descriptor}],"subject":null}}"#);
        let Document::Manifest(read) = parse(manifest.as_bytes()).unwrap() else { panic!("{manifest}") };
        assert_eq!(read.layers[0].sha256().unwrap().to_string(), hex);
        assert_eq!((read.layers[0].size, read.config.unwrap().media_type.as_str()), (3, "a/b"));
        let index = format!(
            r#"{{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{{"platform":{{"os":"linux","architecture":"amd64"}},{}]}}"#,
            &descriptor[1..]
        );
        let Document::Index(read) = parse(index.as_bytes()).unwrap() else { panic!("{index}") };
        assert_eq!(read.manifests[0].platform.as_ref().unwrap().os, "linux");

        for odd in
            [r#""platform":{}"#, r#""platform":null,"annotations":null"#, r#""platform":{"os":null,"variant":""}"#]
        {
            let index = format!(r#"{{"manifests":[{{{odd},{}]}}"#, &descriptor[1..]);
            let Ok(Document::Index(read)) = parse(index.as_bytes()) else { panic!("{index}") };
            assert!(read.manifests[0].platform.as_ref().is_none_or(|it| it.os.is_empty()), "{read:?}");
        }
        let both = format!(r#"{{"layers":[{descriptor}],"manifests":[{descriptor}]}}"#);
        for (text, reason) in [
            ("<html>", "it is invalid: "),
            ("{\"layers\": [{}]}", "it is invalid: missing field `mediaType`"),
            (&both, "both layers and manifests"),
            (
                r#"{"mediaType":"application/vnd.docker.distribution.manifest.v1+json","fsLayers":[]}"#,
                "manifest.v1+json`, which was withdrawn: push it again",
            ),
            (
                r#"{"mediaType":"application/vnd.oci.artifact.manifest.v1+json","blobs":[]}"#,
                "artifact.manifest.v1+json`, which was withdrawn: push it again",
            ),
            ("{}", "it is ``, which is not an artifact"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let other = descriptor.replace("sha256:", "sha512:");
        let other: Descriptor = serde_json::from_str(&other).unwrap();
        assert!(other.sha256().unwrap_err().contains("not of SHA-256"));
    }
}
