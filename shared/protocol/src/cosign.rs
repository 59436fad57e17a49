//! Signatures of a manifest that `cosign verify --key` accepts, by the keys that sign publications. Pure.
//!
//! cosign has two forms: the older one is found by its tag alone, and a bundle is among the referrers. cosign 3 looks for
//! bundles first, and for the tag only if there is none.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::digest::Sha256;
use crate::envelope::pre_authentication_encoding;
use crate::name::ServiceName;
use crate::oci::{Attachment, OciForm};
use crate::oci_manifest::{Content, WrittenManifest};
use crate::token::SigningKey;

/// What a bundle states that signs an artifact. Other predicates are those of attestations.
pub const SIGN_PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";

/// The annotation of a bundle's manifest with its predicate.
pub const PREDICATE_ANNOTATION: &str = "dev.sigstore.bundle.predicateType";

/// The annotation of a layer of the older form: its signature.
pub const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";

/// The media type of what the older form signs.
pub const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// The beginning of the media types of bundles.
const BUNDLE_TYPES: &str = "application/vnd.dev.sigstore.bundle";

const BUNDLE_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const STATEMENT_TYPE: &str = "application/vnd.in-toto+json";

/// The tag of the signatures of a manifest in the older form.
pub fn signature_tag(sha256: &Sha256) -> String {
    format!("sha256-{sha256}.sig")
}

/// Signs the manifest of a version with each of `keys`, in both forms. A manifest of an upstream is signed only if the origin
/// verified signatures of it, and so that all of them are found: its tag keeps those of the upstream, and there are bundles if
/// the upstream has one, or if it has no signatures at the tag.
pub(crate) fn sign(service: &ServiceName, form: &OciForm, keys: &[SigningKey]) -> Vec<Attachment> {
    if keys.is_empty() || (form.is_upstream && form.attachments.is_empty()) {
        return Vec::new();
    }
    let tag = signature_tag(&form.sha256);
    let at_tag = form.attachments.iter().find(|it| it.tag.as_ref() == Some(&tag));
    let bundles = if at_tag.is_none() || form.attachments.iter().any(is_bundle) { keys } else { &[] };
    let older = older(service, form, keys, at_tag);
    older.into_iter().chain(bundles.iter().map(|key| bundle(form, key))).collect()
}

/// Whether cosign 3 finds this as a bundle, and then looks for nothing at the tag: by the only layer of a referrer, whatever it
/// states. Annotations of an upstream's manifest are unsigned.
fn is_bundle(attachment: &Attachment) -> bool {
    let manifest: Value = serde_json::from_str(&attachment.manifest).unwrap_or_default();
    let layers = manifest["layers"].as_array().map(Vec::as_slice);
    let is_of_bundle = |layer: &Value| layer["mediaType"].as_str().is_some_and(|kind| kind.starts_with(BUNDLE_TYPES));
    attachment.tag.is_none() && matches!(layers, Some([layer]) if is_of_bundle(layer))
}

/// The older form. `before`: the signatures of the upstream, which stay. `None`: they cannot be read.
fn older(
    service: &ServiceName,
    form: &OciForm,
    keys: &[SigningKey],
    before: Option<&Attachment>,
) -> Option<Attachment> {
    let payload = json!({
        "critical": {
            "identity": { "docker-reference": format!("weir/{service}") },
            "image": { "docker-manifest-digest": format!("sha256:{}", form.sha256) },
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    let payload = payload.to_string();
    let layer = |key: &SigningKey| {
        let signature = STANDARD.encode(key.sign(payload.as_bytes()));
        Content::of(PAYLOAD_TYPE, payload.as_bytes()).annotated(SIGNATURE_ANNOTATION, signature)
    };
    let layers = keys.iter().map(layer).collect::<Vec<_>>();
    let (manifest, mut blobs) = match before {
        None => (WrittenManifest::new(layers).to_json(), Vec::new()),
        Some(before) => {
            let mut manifest: Value = serde_json::from_str(&before.manifest).ok()?;
            let added = serde_json::to_value(layers).ok()?;
            manifest.get_mut("layers")?.as_array_mut()?.extend(added.as_array()?.iter().cloned());
            (manifest.to_string(), before.blobs.clone())
        }
    };
    blobs.push(payload);
    Some(Attachment { manifest, tag: Some(signature_tag(&form.sha256)), blobs })
}

/// A bundle of Sigstore with a DSSE envelope, as a referrer.
fn bundle(form: &OciForm, key: &SigningKey) -> Attachment {
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "predicate": {},
        "predicateType": SIGN_PREDICATE,
        "subject": [{ "digest": { "sha256": form.sha256.to_string() } }],
    });
    let statement = statement.to_string();
    let signature = key.sign(&pre_authentication_encoding(STATEMENT_TYPE, statement.as_bytes()));
    let bundle = json!({
        "dsseEnvelope": {
            "payload": STANDARD.encode(&statement),
            "payloadType": STATEMENT_TYPE,
            "signatures": [{ "sig": STANDARD.encode(signature) }],
        },
        "mediaType": BUNDLE_TYPE,
        // As cosign names a key.
        "verificationMaterial": { "publicKey": { "hint": STANDARD.encode(Sha256::of(&key.public().to_der()).as_bytes()) } },
    });
    let bundle = bundle.to_string();
    let manifest = WrittenManifest::new(vec![Content::of(BUNDLE_TYPE, bundle.as_bytes())])
        .of_type(BUNDLE_TYPE)
        .about(form.content())
        .annotated("dev.sigstore.bundle.content", "dsse-envelope")
        .annotated(PREDICATE_ANNOTATION, SIGN_PREDICATE);
    Attachment { manifest: manifest.to_json(), tag: None, blobs: vec![bundle] }
}
