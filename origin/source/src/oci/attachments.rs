//! Reads what cosign attached to a manifest, to publish it with the manifest: signatures and attestations by the keys that
//! count. Others are left out, because nobody vouches for them.

use weir_protocol::cosign::{PAYLOAD_TYPE, SIGNATURE_ANNOTATION};
use weir_protocol::digest::Sha256;
use weir_protocol::oci::{Attachment, EMPTY_CONFIG};

use super::cosign::{BUNDLE, MAX_REQUESTS, is_of_one, may_be_of_cosign};
use super::manifest::{Descriptor, Document, parse};
use super::registry::Referrers;
use super::{OciName, Registry, RegistryError};
use crate::cosign::{PublicKey, Verdict, verify_attestation, verify_bundle, verify_payload};

/// The most bytes that are attached to a manifest, with their blobs: they stand in the descriptor. What is larger is left out.
const MAX_ATTACHED_BYTES: u64 = 64 << 10;

/// The layers of attestations in the older form.
const ENVELOPE: &str = "application/vnd.dsse.envelope.v1+json";

/// The attachments of a manifest that one of the keys signed: the referrers, and then the two tags of the older form.
///
/// # Errors
/// The registry cannot be used now.
pub(crate) fn attachments(
    registry: &Registry<'_>,
    name: &OciName,
    digest: &Sha256,
    keys: &[PublicKey],
) -> Result<Vec<Attachment>, RegistryError> {
    let mut reader = Reader { registry, name, digest, keys, requests: MAX_REQUESTS, bytes: MAX_ATTACHED_BYTES };
    let mut read = Vec::new();
    let Referrers { found, .. } = if_there(registry.referrers(name, digest))?.unwrap_or_default();
    for referrer in found.iter().filter(|referrer| may_be_of_cosign(referrer)) {
        if let Ok(of) = referrer.sha256() {
            read.extend(reader.read(&format!("sha256:{of}"), None)?);
        }
    }
    for kind in ["sig", "att"] {
        let tag = format!("sha256-{digest}.{kind}");
        read.extend(reader.read(&tag.clone(), Some(tag))?);
    }
    Ok(read)
}

struct Reader<'a> {
    registry: &'a Registry<'a>,
    name: &'a OciName,
    digest: &'a Sha256,
    keys: &'a [PublicKey],
    /// Which may follow.
    requests: usize,
    /// Which may be added.
    bytes: u64,
}

impl Reader<'_> {
    /// Reads a manifest with its blobs. `None`: none of them is signed, or something is missing or too large.
    fn read(&mut self, reference: &str, tag: Option<String>) -> Result<Option<Attachment>, RegistryError> {
        if !self.may_request() {
            return Ok(None);
        }
        let Some((bytes, sha256)) = if_there(self.registry.manifest_bytes(self.name, reference))? else {
            return Ok(None);
        };
        let is_other = tag.is_none() && reference != format!("sha256:{sha256}");
        let (Ok(Document::Manifest(parsed)), false) = (parse(&bytes), is_other) else { return Ok(None) };
        let Ok(manifest) = String::from_utf8(bytes) else { return Ok(None) };
        let mut left = self.bytes.checked_sub(manifest.len() as u64);
        let (mut blobs, mut is_signed) = (Vec::new(), false);
        for blob in parsed.config.iter().chain(&parsed.layers) {
            left = left.and_then(|left| left.checked_sub(blob.size));
            let (Some(_), Ok(sha256)) = (left, blob.sha256()) else { return Ok(None) };
            if sha256 == Sha256::of(EMPTY_CONFIG) {
                continue;
            }
            if !self.may_request() {
                return Ok(None);
            }
            let bytes = if_there(self.registry.small_blob(self.name, &sha256, blob.size))?;
            let Some(bytes) = bytes else { return Ok(None) };
            is_signed |= self.is_signed(blob, &bytes);
            let Ok(text) = String::from_utf8(bytes) else { return Ok(None) };
            blobs.push(text);
        }
        if is_signed {
            self.bytes = left.unwrap_or_default();
        }
        Ok(is_signed.then_some(Attachment { manifest, tag, blobs }))
    }

    /// Whether one of the keys signed what a layer states of the manifest.
    fn is_signed(&self, layer: &Descriptor, bytes: &[u8]) -> bool {
        let (digest, keys) = (self.digest, self.keys);
        let verdicts = match (layer.media_type.as_str(), layer.annotations.get(SIGNATURE_ANNOTATION)) {
            (kind, _) if kind.starts_with(BUNDLE) => {
                vec![verify_bundle(bytes, digest, keys), verify_attestation(bytes, digest, keys)]
            }
            (ENVELOPE, _) => vec![verify_attestation(bytes, digest, keys)],
            (PAYLOAD_TYPE, Some(signature)) => vec![verify_payload(bytes, signature, false, digest, keys)],
            _ => Vec::new(),
        };
        verdicts.contains(&Verdict::Valid)
    }

    fn may_request(&mut self) -> bool {
        let may = self.requests > 0;
        self.requests = self.requests.saturating_sub(1);
        may
    }
}

/// An answer, if there is one.
///
/// # Errors
/// The registry cannot be used now.
fn if_there<T>(result: Result<T, RegistryError>) -> Result<Option<T>, RegistryError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(RegistryError::NotFound(_) | RegistryError::Unusable(_)) => Ok(None),
        Err(error) if is_of_one(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
