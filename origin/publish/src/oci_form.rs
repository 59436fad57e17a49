//! Pure: the manifest of a publication for clients of the OCI distribution API. Begin at [`OciContent::form`].

use serde::Serialize;
use weir_protocol::descriptor::{Descriptor, Publication, Representation};
use weir_protocol::digest::Sha256;
use weir_protocol::oci::{
    EMPTY_CONFIG, EMPTY_CONFIG_TYPE, MANIFEST_TYPE, OciBlob, OciForm, TARBALL_ARTIFACT_TYPE, TARBALL_LAYER_TYPE,
};
use weir_upstream::SEMVER;

/// What the OCI form of a content is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OciContent {
    /// The layers of the manifest.
    pub(super) layers: Vec<OciBlob>,
}

/// What a manifest says of a publication beside its content.
#[derive(Debug, Clone, Copy)]
pub(super) struct Described<'a> {
    pub(super) publication: &'a Publication,
    /// As in the service's definition.
    pub(super) followed_ref: &'a str,
    /// The URL of the upstream, without credentials.
    pub(super) source: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a> {
    schema_version: u8,
    media_type: &'a str,
    artifact_type: &'a str,
    config: Content<'a>,
    layers: Vec<Content<'a>>,
    annotations: Annotations<'a>,
}

/// A content descriptor of the image specification.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Content<'a> {
    media_type: &'a str,
    digest: String,
    size: u64,
}

/// Sorted by name.
#[derive(Serialize)]
struct Annotations<'a> {
    #[serde(rename = "dev.weir.service")]
    service: &'a str,
    #[serde(rename = "org.opencontainers.image.revision")]
    revision: String,
    #[serde(rename = "org.opencontainers.image.source", skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    #[serde(rename = "org.opencontainers.image.version", skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
}

impl OciContent {
    /// The content whose gzip body is this one.
    pub(super) fn of_tarball(sha256: Sha256, representation: &Representation) -> Self {
        let media_type = TARBALL_LAYER_TYPE.to_owned();
        let (digest, size, frames) = (representation.digest, representation.size, representation.frames);
        Self { layers: vec![OciBlob { sha256, media_type, digest, size, frames }] }
    }

    /// What the form of a stored version was made of.
    pub(super) fn of(descriptor: &Descriptor) -> Option<Self> {
        descriptor.oci().map(|form| Self { layers: form.blobs.clone() })
    }

    /// The form of a publication with this content. The one of `current`, which has the same publication, stays if its bodies
    /// are the same: nobody who pulls by digest sees a change.
    pub(super) fn form(&self, described: Described<'_>, current: Option<&Descriptor>) -> Box<OciForm> {
        let current = current.and_then(Descriptor::oci).filter(|form| form.blobs == self.layers);
        Box::new(
            current
                .cloned()
                .unwrap_or_else(|| OciForm::new(MANIFEST_TYPE, self.manifest(described), self.layers.clone())),
        )
    }

    /// The same bytes at every origin: the order of the fields is fixed.
    fn manifest(&self, Described { publication, followed_ref, source }: Described<'_>) -> String {
        let content = |media_type, sha256, size| Content { media_type, digest: format!("sha256:{sha256}"), size };
        let layers = self.layers.iter().map(|blob| content(&blob.media_type, blob.sha256, blob.size));
        let manifest = Manifest {
            schema_version: 2,
            media_type: MANIFEST_TYPE,
            artifact_type: TARBALL_ARTIFACT_TYPE,
            config: content(EMPTY_CONFIG_TYPE, Sha256::of(EMPTY_CONFIG), EMPTY_CONFIG.len() as u64),
            layers: layers.collect(),
            annotations: Annotations {
                service: publication.service.as_str(),
                revision: revision(publication, followed_ref),
                source,
                version: publication.version.as_ref().map(|version| version.as_str()),
            },
        };
        serde_json::to_string(&manifest).expect("a manifest is made of texts and numbers")
    }
}

/// The revision as Flux writes it: `main@sha1:<commit>`, of a range `<tag>@sha1:<commit>`. Other revisions are ids.
fn revision(publication: &Publication, followed_ref: &str) -> String {
    let id = &publication.revision_id;
    let Some(commit) = &publication.commit else { return id.to_string() };
    let of_heads = followed_ref.strip_prefix("refs/heads/");
    let name = of_heads.or_else(|| followed_ref.strip_prefix("refs/tags/")).unwrap_or(followed_ref);
    let name = publication.version.as_ref().map_or(name, |version| version.as_str());
    if name == commit.as_str() || name.starts_with(SEMVER) { id.to_string() } else { format!("{name}@{id}") }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::draft::tests::descriptor;
    use super::*;
    use weir_protocol::digest::ObjectDigest;

    pub(in super::super) fn layer(body: &str) -> OciBlob {
        let (sha256, digest) = (Sha256::of(body.as_bytes()), ObjectDigest::of(body.as_bytes()));
        OciBlob { sha256, media_type: TARBALL_LAYER_TYPE.to_owned(), digest, size: body.len() as u64, frames: 1 }
    }

    /// The form of a publication of one gzip body, by its `ref`, its version and its revision.
    fn form(followed_ref: &str, version: Option<&str>, revision_id: Option<&str>) -> Box<OciForm> {
        let mut publication = descriptor("shop-prod", 10).publication().clone();
        publication.version = version.map(|version| version.parse().unwrap());
        if let Some(id) = revision_id {
            publication.revision_id = id.parse().unwrap();
            publication.commit = publication.revision_id.commit();
        }
        let source = Some("https://git.example/acme/shop.git").filter(|_| version.is_some());
        let described = Described { publication: &publication, followed_ref, source };
        OciContent { layers: vec![layer("gzip")] }.form(described, None)
    }

    /// Who pins a digest relies on it: a change of these bytes changes all digests with the next publications.
    #[test]
    fn a_manifest_has_these_bytes_for_ever() {
        let tagged = form("semver:^1", Some("v1.2.0"), None);
        assert_eq!(
            tagged.manifest,
            "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\
             \"artifactType\":\"application/vnd.weir.tarball.v1\",\
             \"config\":{\"mediaType\":\"application/vnd.oci.empty.v1+json\",\
             \"digest\":\"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\",\"size\":2},\
             \"layers\":[{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\",\
             \"digest\":\"sha256:c8d77bf4d8b1a10dd67a283d0c82bd96c9d5609860f84d7fc77692a36ab9b4c2\",\"size\":4}],\
             \"annotations\":{\"dev.weir.service\":\"shop-prod\",\
             \"org.opencontainers.image.revision\":\"v1.2.0@sha1:000000000000000000000000000000000000000a\",\
             \"org.opencontainers.image.source\":\"https://git.example/acme/shop.git\",\
             \"org.opencontainers.image.version\":\"v1.2.0\"}}"
        );
        assert_eq!(tagged.sha256, Sha256::of(tagged.manifest.as_bytes()));
        assert!(!form("main", None, None).manifest.contains("image.source"), "of a local path");
    }

    #[test]
    fn a_revision_is_written_as_flux_does() {
        let (commit, hex) = (format!("{:040x}", 10), "ab".repeat(32));
        for (followed_ref, version, revision_id, expected) in [
            ("main", None, None, format!("main@sha1:{commit}")),
            ("refs/heads/main", None, None, format!("main@sha1:{commit}")),
            ("refs/tags/release/1", None, None, format!("release/1@sha1:{commit}")),
            ("v1", Some("v1"), None, format!("v1@sha1:{commit}")),
            ("HEAD", None, None, format!("HEAD@sha1:{commit}")),
            ("semver:^1", None, None, format!("sha1:{commit}")),
            (&commit, None, None, format!("sha1:{commit}")),
            (
                "redis@semver:^1",
                Some("1.0.0"),
                Some(format!("helm:1.0.0+sha256:{hex}")),
                format!("helm:1.0.0+sha256:{hex}"),
            ),
            ("parts:a=main", None, Some(format!("parts:{hex}")), format!("parts:{hex}")),
        ] {
            let form = form(followed_ref, version, revision_id.as_deref());
            let manifest: serde_json::Value = serde_json::from_str(&form.manifest).unwrap();
            assert_eq!(manifest["annotations"]["org.opencontainers.image.revision"], expected, "{followed_ref}");
        }
    }

    #[test]
    fn a_form_stays_as_long_as_its_bodies_do() {
        let current = descriptor("shop-prod", 10);
        let described = |followed_ref| Described { publication: current.publication(), followed_ref, source: None };
        let one = OciContent { layers: vec![layer("one")] };
        let mut fields = current.fields().clone();
        fields.oci = Some(one.form(described("main"), Some(&current)));
        let current = Descriptor::new(fields);
        assert_eq!(Some(&*one.form(described("v1"), Some(&current))), current.oci());
        let other = OciContent { layers: vec![layer("other")] };
        assert_ne!(other.form(described("v1"), Some(&current)).sha256, current.oci().unwrap().sha256);
    }
}
