//! What is attached to the manifest of a version: signatures and attestations of its upstream, signatures of its origin, and
//! its signed publication. Clients of registries find them as referrers, or by a tag of cosign. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::descriptor::Descriptor;
use crate::digest::Sha256;
use crate::oci::{Attachment, OciForm};
use crate::oci_manifest::{Content, MANIFEST_TYPE, WrittenManifest};

/// The artifact type of a signed publication.
pub const PUBLICATION_ARTIFACT_TYPE: &str = "application/vnd.weir.publication.v1";

/// The type of its only layer: the envelope of the descriptor, byte for byte.
const ENVELOPE_TYPE: &str = "application/vnd.dsse.envelope.v1+json";

/// The annotation with the name of the service.
pub const SERVICE: &str = "dev.weir.service";

/// An [`Attachment`] as it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// SHA-256 of the manifest.
    pub sha256: Sha256,
    /// The manifest.
    pub manifest: Bytes,
    /// The media type of the manifest.
    pub media_type: String,
    /// What it is.
    pub artifact_type: String,
    /// The annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
    /// The tag by which cosign finds it. `None`: it is a referrer.
    pub tag: Option<String>,
    blobs: Vec<(Sha256, Bytes)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Read {
    media_type: Option<String>,
    artifact_type: Option<String>,
    config: Option<Config>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    media_type: String,
}

impl Attached {
    /// `None`: it is no manifest.
    fn read(Attachment { manifest, tag, blobs }: Attachment) -> Option<Self> {
        let Read { media_type, artifact_type, config, annotations } = serde_json::from_str(&manifest).ok()?;
        let blobs = blobs.into_iter().map(|blob| (Sha256::of(blob.as_bytes()), Bytes::from(blob)));
        Some(Self {
            sha256: Sha256::of(manifest.as_bytes()),
            manifest: manifest.into(),
            media_type: media_type.unwrap_or_else(|| MANIFEST_TYPE.to_owned()),
            artifact_type: artifact_type.or(config.map(|config| config.media_type)).unwrap_or_default(),
            annotations: annotations.unwrap_or_default(),
            tag,
            blobs: blobs.collect(),
        })
    }

    /// A blob that the manifest names.
    pub fn blob(&self, sha256: &Sha256) -> Option<&Bytes> {
        self.blobs.iter().find(|(of, _)| of == sha256).map(|(_, bytes)| bytes)
    }
}

impl Descriptor {
    /// All that is attached to the manifest of this version; of two with one tag the first counts. Reads the whole descriptor,
    /// and hashes what it finds: keep the result.
    pub fn attached(&self) -> Vec<Attached> {
        #[derive(Deserialize)]
        struct Signed<'a> {
            #[serde(borrow)]
            envelope: Option<&'a RawValue>,
            oci: Option<Signatures>,
        }
        #[derive(Deserialize)]
        struct Signatures {
            #[serde(default)]
            signatures: Vec<Attachment>,
        }
        let Some(form) = self.oci() else { return Vec::new() };
        let Ok(Signed { envelope, oci }) = serde_json::from_slice(self.bytes()) else { return Vec::new() };
        let publication = envelope.map(|envelope| self.publication_attachment(form, envelope.get()));
        // A signature of the origin repeats those of the upstream at its tag.
        let signatures = oci.map(|oci| oci.signatures).unwrap_or_default();
        let all = signatures.into_iter().chain(form.attachments.iter().cloned()).chain(publication);
        all.filter_map(Attached::read).collect()
    }

    /// The signed publication. It is a function of the bytes of the descriptor, so all edges have the same one.
    fn publication_attachment(&self, form: &OciForm, envelope: &str) -> Attachment {
        let manifest = WrittenManifest::new(vec![Content::of(ENVELOPE_TYPE, envelope.as_bytes())])
            .of_type(PUBLICATION_ARTIFACT_TYPE)
            .about(form.content())
            .annotated(SERVICE, self.publication().service.as_str());
        Attachment { manifest: manifest.to_json(), tag: None, blobs: vec![envelope.to_owned()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cosign::{PAYLOAD_TYPE, PREDICATE_ANNOTATION, SIGN_PREDICATE, sign};
    use crate::descriptor::DescriptorFields;
    use crate::token::SigningKey;
    use serde_json::Value;

    fn key() -> SigningKey {
        SigningKey::generate().unwrap().0
    }

    fn upstream(attachments: Vec<Attachment>) -> OciForm {
        let form = OciForm::new(MANIFEST_TYPE, "{\"upstream\":1}".to_owned(), Vec::new());
        OciForm { is_upstream: true, attachments, ..form }
    }

    fn attached(fields: &DescriptorFields, form: &OciForm, keys: &[SigningKey], cosign: bool) -> Vec<(bool, String)> {
        let fields = DescriptorFields { oci: Some(Box::new(form.clone())), ..fields.clone() };
        let written = Descriptor::signed(fields.clone(), keys, cosign);
        // The signatures are no part of what an origin compares.
        let read = Descriptor::parse(written.bytes().clone()).unwrap();
        assert_eq!(read.fields(), &fields);
        let attached = read.attached();
        assert_eq!(attached, Descriptor::signed(fields, keys, cosign).attached(), "the same bytes each time");
        attached.into_iter().map(|it| (it.tag.is_some(), it.artifact_type)).collect()
    }

    #[test]
    fn the_origin_signs_what_it_made_and_what_its_upstream_signed_and_hides_no_signature() {
        let golden = include_bytes!("../golden/agent/descriptor.json");
        let fields = Descriptor::parse(golden.to_vec().into()).unwrap().fields().clone();
        let made = OciForm::new(MANIFEST_TYPE, "{\"made\":1}".to_owned(), Vec::new());
        let (older, bundle) = (
            (true, "application/vnd.oci.empty.v1+json".to_owned()),
            (false, "application/vnd.dev.sigstore.bundle.v0.3+json".to_owned()),
        );
        let publication = (false, PUBLICATION_ARTIFACT_TYPE.to_owned());
        let keys = [key(), key()];
        assert!(attached(&fields, &made, &[], true).is_empty());
        assert_eq!(attached(&fields, &made, &keys, false), std::slice::from_ref(&publication));
        let both = [older.clone(), bundle.clone(), bundle.clone(), publication.clone()];
        assert_eq!(attached(&fields, &made, &keys, true), both);
        assert_eq!(attached(&fields, &upstream(Vec::new()), &keys, true), std::slice::from_ref(&publication));

        // The upstream signed in the older form, or by a bundle.
        let service = &fields.publication.service;
        let [at_tag, of_upstream]: [Attachment; 2] =
            sign(service, &OciForm { is_upstream: false, ..upstream(vec![]) }, &[key()])
                .try_into()
                .expect("one key has two");
        let one = [older.clone(), older.clone(), publication.clone()];
        assert_eq!(attached(&fields, &upstream(vec![at_tag.clone()]), &keys, true), one);
        let signed = sign(service, &upstream(vec![at_tag.clone()]), &keys);
        let merged: Value = serde_json::from_str(&signed[0].manifest).unwrap();
        let before: Value = serde_json::from_str(&at_tag.manifest).unwrap();
        assert_eq!((merged["layers"].as_array().unwrap().len(), &merged["layers"][0]), (3, &before["layers"][0]));
        assert_eq!(signed[0].blobs[0], at_tag.blobs[0]);
        let with_bundle = [older.clone(), bundle.clone(), bundle.clone(), bundle.clone(), publication.clone()];
        assert_eq!(attached(&fields, &upstream(vec![of_upstream.clone()]), &keys, true), with_bundle);

        // cosign 3 looks for nothing at the tag if there is a bundle, such as an attestation.
        let attestation =
            Attachment { manifest: of_upstream.manifest.replace(SIGN_PREDICATE, "of-sources"), ..of_upstream };
        let with_attestation = [&older, &bundle, &bundle, &older, &bundle, &publication].map(Clone::clone);
        assert_eq!(attached(&fields, &upstream(vec![at_tag.clone(), attestation]), &keys, true), with_attestation);
        // An annotation is unsigned, and makes no bundle.
        let layer = Content::of(PAYLOAD_TYPE, b"signed by cosign 2").annotated("of-nobody", SIGN_PREDICATE.to_owned());
        let manifest = WrittenManifest::new(vec![layer]).annotated(PREDICATE_ANNOTATION, SIGN_PREDICATE).to_json();
        let referrer = Attachment { manifest, tag: None, blobs: Vec::new() };
        let kinds = attached(&fields, &upstream(vec![at_tag, referrer]), &keys, true);
        assert!(!kinds.contains(&bundle), "it would hide the signatures at the tag: {kinds:?}");
    }
}
