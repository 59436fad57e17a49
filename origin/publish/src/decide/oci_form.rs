//! Pure: the manifest of a publication for clients of the OCI distribution API. Begin at [`OciContent::form`].

use std::time::SystemTime;

use humantime::{format_rfc3339_seconds, parse_rfc3339};
use serde_json::Value;
use weir_protocol::attached::SERVICE;
use weir_protocol::descriptor::{Descriptor, Publication, Representation};
use weir_protocol::digest::Sha256;
use weir_protocol::oci::{
    CHART_CONFIG_TYPE, MANIFEST_TYPE, OciBlob, OciForm, TARBALL_ARTIFACT_TYPE, TARBALL_LAYER_TYPE, UpstreamManifest,
};
use weir_protocol::oci_manifest::{Content, WrittenManifest};
use weir_upstream::SEMVER;

/// The annotation with the time of the commit.
const CREATED: &str = "org.opencontainers.image.created";

/// What the OCI form of a content is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OciContent {
    /// Config and layers of the manifest.
    pub(crate) blobs: Vec<OciBlob>,
    /// `None`: one is made.
    pub(crate) manifest: Option<UpstreamManifest>,
}

/// What a manifest says of a publication beside its content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Described<'a> {
    pub(crate) publication: &'a Publication,
    /// As in the service's definition.
    pub(crate) followed_ref: &'a str,
    /// The URL of the upstream, without credentials.
    pub(crate) source: Option<&'a str>,
    /// When its commit was made.
    pub(crate) created: Option<SystemTime>,
}

impl OciContent {
    /// The content whose gzip body is this one.
    pub(crate) fn of_tarball(sha256: Sha256, representation: &Representation) -> Self {
        let media_type = TARBALL_LAYER_TYPE.to_owned();
        let (digest, size, frames) = (representation.digest, representation.size, representation.frames);
        Self { blobs: vec![OciBlob { sha256, media_type, digest, size, frames }], manifest: None }
    }

    /// What the form of a stored version was made of.
    pub(crate) fn of(descriptor: &Descriptor) -> Option<Self> {
        let form = descriptor.oci()?;
        let manifest = form.is_upstream.then(|| UpstreamManifest {
            media_type: form.media_type.clone(),
            text: form.manifest.clone(),
            attachments: form.attachments.clone(),
        });
        Some(Self { blobs: form.blobs.clone(), manifest })
    }

    /// The form of a publication with this content. A manifest that was made for `current`, which has the same publication, stays if
    /// its bodies are the same: nobody who pulls by digest sees a change.
    pub(crate) fn form(&self, described: Described<'_>, current: Option<&Descriptor>) -> Box<OciForm> {
        if let Some(UpstreamManifest { media_type, text, attachments }) = &self.manifest {
            let form = OciForm::new(media_type, text.clone(), self.blobs.clone());
            return Box::new(OciForm { is_upstream: true, attachments: attachments.clone(), ..form });
        }
        let is_same = |form: &&OciForm| !form.is_upstream && form.blobs == self.blobs;
        let made = || OciForm::new(MANIFEST_TYPE, self.made(described), self.blobs.clone());
        Box::new(current.and_then(Descriptor::oci).filter(is_same).cloned().unwrap_or_else(made))
    }

    /// The same bytes at every origin.
    fn made(&self, Described { publication, followed_ref, source, created }: Described<'_>) -> String {
        let (config, layers): (Vec<_>, Vec<_>) =
            self.blobs.iter().partition(|blob| blob.media_type == CHART_CONFIG_TYPE);
        let manifest = WrittenManifest::new(layers.into_iter().map(content).collect());
        let manifest = match config.first() {
            Some(config) => manifest.with_config(content(config)),
            None => manifest.of_type(TARBALL_ARTIFACT_TYPE),
        };
        let annotations = [
            (SERVICE, Some(publication.service.to_string())),
            (CREATED, created.map(|created| format_rfc3339_seconds(created).to_string())),
            ("org.opencontainers.image.revision", Some(revision(publication, followed_ref))),
            ("org.opencontainers.image.source", source.map(str::to_owned)),
            ("org.opencontainers.image.version", publication.version.as_ref().map(ToString::to_string)),
        ];
        let known = annotations.into_iter().filter_map(|(name, value)| Some((name, value?)));
        known.fold(manifest, |manifest, (name, value)| manifest.annotated(name, value)).to_json()
    }
}

/// What the manifest of a version says of the time of its commit.
pub(super) fn created(version: &Descriptor) -> Option<SystemTime> {
    let manifest: Value = serde_json::from_str(&version.oci()?.manifest).ok()?;
    parse_rfc3339(manifest["annotations"][CREATED].as_str()?).ok()
}

fn content(blob: &OciBlob) -> Content<'_> {
    Content::new(&blob.media_type, &blob.sha256, blob.size)
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
pub(crate) mod tests {
    use super::super::draft::tests::descriptor;
    use super::*;
    use std::time::Duration;
    use weir_protocol::digest::ObjectDigest;
    use weir_protocol::oci::Attachment;

    pub(crate) fn layer(body: &str) -> OciBlob {
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
        let created = source.map(|_| SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000));
        let described = Described { publication: &publication, followed_ref, source, created };
        OciContent { blobs: vec![layer("gzip")], manifest: None }.form(described, None)
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
             \"org.opencontainers.image.created\":\"2026-11-18T11:06:40Z\",\
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
        let described =
            |followed_ref| Described { publication: current.publication(), followed_ref, source: None, created: None };
        let one = OciContent { blobs: vec![layer("one")], manifest: None };
        let mut fields = current.fields().clone();
        fields.oci = Some(one.form(described("main"), Some(&current)));
        let current = Descriptor::new(fields);
        assert_eq!(Some(&*one.form(described("v1"), Some(&current))), current.oci());
        let other = OciContent { blobs: vec![layer("other")], manifest: None };
        assert_ne!(other.form(described("v1"), Some(&current)).sha256, current.oci().unwrap().sha256);
    }

    #[test]
    fn a_manifest_of_an_upstream_is_taken_as_it_is() {
        let current = descriptor("shop-prod", 10);
        let described =
            Described { publication: current.publication(), followed_ref: "v1", source: None, created: None };
        let attachments = vec![Attachment { manifest: "{}".to_owned(), tag: None, blobs: vec!["signed".to_owned()] }];
        let manifest = UpstreamManifest { media_type: "application/x".to_owned(), text: "{ }".to_owned(), attachments };
        let manifest = Some(manifest);
        let whole = OciContent { blobs: vec![layer("one")], manifest };
        let form = whole.form(described, None);
        assert_eq!((&*form.media_type, &*form.manifest, form.sha256), ("application/x", "{ }", Sha256::of(b"{ }")));
        let with = |form: &OciForm| {
            let mut fields = current.fields().clone();
            fields.oci = Some(Box::new(form.clone()));
            Descriptor::new(fields)
        };
        assert_eq!(OciContent::of(&with(&form)).as_ref(), Some(&whole), "another service copies it");
        let files = OciContent { manifest: None, ..whole };
        assert_ne!(files.form(described, Some(&with(&form))), form, "the blobs alone do not make it");
    }

    #[test]
    fn a_chart_without_a_manifest_gets_that_of_a_chart() {
        let publication = descriptor("shop", 10).publication().clone();
        let described =
            Described { publication: &publication, followed_ref: "shop@1.0.0", source: None, created: None };
        let typed = |body: &str, media_type: &str| OciBlob { media_type: media_type.to_owned(), ..layer(body) };
        let blobs = vec![typed("archive", "chart"), typed("{}", CHART_CONFIG_TYPE), typed("signed", "provenance")];
        let form = OciContent { blobs, manifest: None }.form(described, None);
        let manifest: serde_json::Value = serde_json::from_str(&form.manifest).unwrap();
        assert_eq!(
            (&manifest["artifactType"], &manifest["config"]["mediaType"]),
            (&serde_json::Value::Null, &CHART_CONFIG_TYPE.into())
        );
        let layers: Vec<_> = manifest["layers"].as_array().unwrap().iter().map(|layer| &layer["mediaType"]).collect();
        assert_eq!(layers, ["chart", "provenance"]);
    }
}
