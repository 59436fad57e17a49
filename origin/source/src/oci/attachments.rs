//! Reads what cosign attached to a manifest, to publish it with the manifest: signatures and attestations by the keys that
//! count. Others are left out, because nobody vouches for them.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;
use weir_protocol::cosign::{PAYLOAD_TYPE, SIGNATURE_ANNOTATION, signature_tag};
use weir_protocol::digest::Sha256;
use weir_protocol::oci::{Attachment, EMPTY_CONFIG};

use super::cosign::{BUNDLE, MAX_REQUESTS, is_attestation, is_of_one, may_be_of_cosign};
use super::manifest::{ACCEPT, Descriptor, Document, Manifest, parse, parse_digest};
use super::registry::{MAX_MANIFEST_BYTES, Referrers};
use super::{OciName, Registry, RegistryError};
use crate::cosign::{PublicKey, Verdict, verify_attestation, verify_bundle, verify_payload};

/// The most bytes that are attached to a manifest, with their blobs: they stand in the descriptor. What is larger is left out.
const MAX_ATTACHED_BYTES: u64 = 64 << 10;

/// The layers of attestations in the older form.
const ENVELOPE: &str = "application/vnd.dsse.envelope.v1+json";

/// What was read of what is attached to a manifest.
pub(crate) struct Attachments {
    pub(crate) read: Vec<Attachment>,
    /// Why something may be missing.
    pub(crate) failed: Option<RegistryError>,
}

/// The attachments of a manifest that one of the keys signed. Signatures are first, so that nothing takes their place:
/// those at their tag, then those among the referrers, then attestations in both places.
pub(crate) fn attachments(registry: &Registry<'_>, name: &OciName, digest: &Sha256, keys: &[PublicKey]) -> Attachments {
    let (bytes, read) = (MAX_ATTACHED_BYTES, Vec::new());
    let mut reader = Reader { registry, name, digest, keys, requests: 0, bytes, read, failed: None };
    let ended = reader.read_all().err();
    Attachments { read: reader.read, failed: ended.or(reader.failed) }
}

struct Reader<'a> {
    registry: &'a Registry<'a>,
    name: &'a OciName,
    digest: &'a Sha256,
    keys: &'a [PublicKey],
    /// Which may follow in this place.
    requests: usize,
    /// Which may be added.
    bytes: u64,
    read: Vec<Attachment>,
    /// The first request that failed.
    failed: Option<RegistryError>,
}

/// A manifest that may be attached.
struct Candidate {
    text: String,
    manifest: Manifest,
}

/// The manifest that a manifest is about.
#[derive(Deserialize)]
struct About {
    subject: Option<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    digest: String,
}

impl Reader<'_> {
    /// Reads all places.
    ///
    /// # Errors
    /// The registry cannot be used now.
    fn read_all(&mut self) -> Result<(), RegistryError> {
        self.at_tag(signature_tag(self.digest))?;
        let referrers = self.registry.referrers(self.name, self.digest);
        let Referrers { found, failed } = self.if_there(referrers)?.unwrap_or_default();
        if let Some(error) = failed {
            self.if_there::<()>(Err(error))?;
        }
        let mut seen = HashSet::new();
        let is_new = |referrer: &&Descriptor| referrer.sha256().is_ok_and(|sha256| seen.insert(sha256));
        let of_cosign = found.iter().filter(|referrer| may_be_of_cosign(referrer)).filter(is_new);
        let (attesting, signing): (Vec<_>, Vec<_>) =
            of_cosign.partition(|referrer| is_attestation(&referrer.annotations));
        let mut later = Vec::new();
        self.requests = MAX_REQUESTS;
        for referrer in signing {
            match self.referrer(referrer)? {
                // In the list of a tag only the manifest says so.
                Some(found) if is_attestation(&found.manifest.annotations) => later.push(found),
                Some(found) => self.add(found, None)?,
                None => {}
            }
        }
        self.requests = MAX_REQUESTS;
        for found in later {
            self.add(found, None)?;
        }
        for referrer in attesting {
            if let Some(found) = self.referrer(referrer)? {
                self.add(found, None)?;
            }
        }
        self.at_tag(format!("sha256-{}.att", self.digest))
    }

    /// Reads what is at a tag of the older form.
    fn at_tag(&mut self, tag: String) -> Result<(), RegistryError> {
        self.requests = MAX_REQUESTS;
        match self.candidate(&tag, MAX_MANIFEST_BYTES)? {
            Some((found, _)) => self.add(found, Some(tag)),
            None => Ok(()),
        }
    }

    /// Reads the manifest of a referrer. `None`: it is missing or too large, or is about another manifest.
    fn referrer(&mut self, referrer: &Descriptor) -> Result<Option<Candidate>, RegistryError> {
        let (Ok(sha256), true) = (referrer.sha256(), referrer.size <= self.bytes) else { return Ok(None) };
        let found = self.candidate(&format!("sha256:{sha256}"), MAX_ATTACHED_BYTES)?;
        Ok(found.filter(|(found, of)| *of == sha256 && is_about(&found.text, self.digest)).map(|(found, _)| found))
    }

    /// Reads a manifest, with its digest.
    fn candidate(&mut self, reference: &str, max_bytes: u64) -> Result<Option<(Candidate, Sha256)>, RegistryError> {
        if !self.may_request() {
            return Ok(None);
        }
        let url = self.registry.url_of(self.name, &["manifests", reference]);
        let response = self.registry.get(self.name, "manifests", url, ACCEPT);
        let read = response.and_then(|response| self.registry.read(response, max_bytes));
        let Some((bytes, sha256)) = self.if_there(read)? else { return Ok(None) };
        let (Ok(Document::Manifest(manifest)), Ok(text)) = (parse(&bytes), String::from_utf8(bytes)) else {
            return Ok(None);
        };
        Ok(Some((Candidate { text, manifest: *manifest }, sha256)))
    }

    /// Adds a manifest with its blobs, if the keys signed its layers. A referrer is left out if they did not sign all of them.
    /// At a tag, to which others add theirs, only the layers are left out that they did not sign.
    fn add(&mut self, Candidate { text, manifest }: Candidate, tag: Option<String>) -> Result<(), RegistryError> {
        let (mut blobs, mut signed) = (Vec::new(), Vec::new());
        for layer in &manifest.layers {
            let blob = if may_be_signed(layer) { self.blob(layer, &blobs)? } else { None };
            let blob = blob.filter(|(_, blob)| self.is_signed(layer, blob.as_bytes()));
            if blob.is_none() && tag.is_none() {
                return Ok(());
            }
            signed.push(blob.is_some());
            blobs.extend(blob);
        }
        if !signed.contains(&true) {
            return Ok(());
        }
        if let Some(config) = manifest.config.filter(|config| config.sha256() != Ok(Sha256::of(EMPTY_CONFIG))) {
            let Some(config) = self.blob(&config, &blobs)? else { return Ok(()) };
            blobs.push(config);
        }
        let manifest = if signed.contains(&false) { with_layers(&text, &signed) } else { Some(text) };
        let Some(manifest) = manifest else { return Ok(()) };
        let mut seen = HashSet::new();
        blobs.retain(|(sha256, _)| seen.insert(*sha256));
        let blobs: Vec<_> = blobs.into_iter().map(|(_, blob)| blob).collect();
        let bytes: usize = blobs.iter().chain([&manifest]).map(String::len).sum();
        if let Some(left) = self.bytes.checked_sub(bytes as u64) {
            self.bytes = left;
            self.read.push(Attachment { manifest, tag, blobs });
        }
        Ok(())
    }

    /// A blob that a manifest names, and its digest. `known`: those of the manifest that were read. `None`: it is missing or too
    /// large, or is no text.
    fn blob(
        &mut self,
        blob: &Descriptor,
        known: &[(Sha256, String)],
    ) -> Result<Option<(Sha256, String)>, RegistryError> {
        let (Ok(sha256), true) = (blob.sha256(), blob.size <= self.bytes) else { return Ok(None) };
        if let Some(known) = known.iter().find(|(known, _)| *known == sha256) {
            return Ok(Some(known.clone()));
        }
        if !self.may_request() {
            return Ok(None);
        }
        let bytes = self.registry.small_blob(self.name, &sha256, MAX_ATTACHED_BYTES);
        let text = self.if_there(bytes)?.and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(text.map(|text| (sha256, text)))
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

    /// An answer, if there is one. Whatever else is wrong with one, others may be there.
    ///
    /// # Errors
    /// The registry cannot be used now.
    fn if_there<T>(&mut self, result: Result<T, RegistryError>) -> Result<Option<T>, RegistryError> {
        match result {
            Ok(found) => return Ok(Some(found)),
            Err(RegistryError::NotFound(_)) => {}
            Err(error) if matches!(error, RegistryError::Unusable(_)) || is_of_one(&error) => {
                self.failed.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}

/// Whether a layer is of a kind that keys sign.
fn may_be_signed(layer: &Descriptor) -> bool {
    let kind = layer.media_type.as_str();
    kind.starts_with(BUNDLE) || [ENVELOPE, PAYLOAD_TYPE].contains(&kind)
}

/// Whether a manifest says that it is about the one with this digest.
fn is_about(manifest: &str, digest: &Sha256) -> bool {
    let about = serde_json::from_str(manifest).ok().and_then(|About { subject }| subject);
    about.and_then(|subject| parse_digest(&subject.digest)).as_ref() == Some(digest)
}

/// A manifest with some of its layers.
fn with_layers(manifest: &str, kept: &[bool]) -> Option<String> {
    let mut manifest: Value = serde_json::from_str(manifest).ok()?;
    let mut kept = kept.iter();
    manifest.get_mut("layers")?.as_array_mut()?.retain(|_| kept.next() == Some(&true));
    Some(manifest.to_string())
}
