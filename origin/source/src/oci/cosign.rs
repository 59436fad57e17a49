//! Finds the signatures of a manifest that cosign pushed, and verifies them.

use std::collections::HashMap;

use weir_protocol::cosign::{
    PAYLOAD_TYPE as PAYLOAD, PREDICATE_ANNOTATION as PREDICATE, SIGN_PREDICATE as SIGNED,
    SIGNATURE_ANNOTATION as SIGNATURE, signature_tag,
};
use weir_protocol::digest::Sha256;
use weir_protocol::oci::EMPTY_CONFIG_TYPE as EMPTY;
use weir_upstream::{Server, UpstreamError};

use super::manifest::{Descriptor, Document, Manifest};
use super::registry::Referrers;
use super::{OciName, Registry, RegistryError, Resolved};
use crate::cosign::{PublicKey, Seen, Verdict, verify_bundle, verify_payload};

/// The most requests for signatures of a manifest in each place. Whoever may push can add some that do not count.
pub(super) const MAX_REQUESTS: usize = 100;

/// The largest signature with what it signs, in bytes.
const MAX_SIGNATURE_BYTES: u64 = 64 << 10;

/// The media types of layers begin so, and the types of artifacts.
pub(super) const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";

/// The type of the referrers of `cosign sign --registry-referrers-mode=oci-1-1`, of cosign 2. Their layers are those of the tag.
const SIGNATURE_TYPE: &str = "application/vnd.dev.cosign.artifact.sig.v1+json";

/// The annotation of a layer that somebody without a key signed.
const CERTIFICATE: &str = "dev.sigstore.cosign/certificate";

/// Looks for a valid signature: among what refers to the manifest, and then at the tag for signatures. What cannot be
/// requested is skipped, because another signature may be valid.
///
/// # Errors
/// The registry cannot be used, or no signature is valid and one could not be requested. Inside: there is none, with the
/// reason.
pub(crate) fn verify(
    registry: &Registry<'_>,
    name: &OciName,
    digest: &Sha256,
    keys: &[PublicKey],
) -> Result<Result<(), String>, RegistryError> {
    let mut search =
        Search { registry, name, digest, keys, seen: Seen::default(), requested: 0, failed: None, unusable: None };
    if search.referrers()? {
        return Ok(Ok(()));
    }
    // Referrers, which whoever may push can add, hide no signature in the other place.
    search.requested = 0;
    if search.tag()? {
        return Ok(Ok(()));
    }
    if let Some(error) = search.failed {
        return Err(error);
    }
    let unusable = search.unusable.map(|reason| format!("; the repository {reason}")).unwrap_or_default();
    Ok(Err(format!("no signature of `sha256:{digest}` by a key of `cosign_keys`{}{unusable}", search.seen)))
}

struct Search<'a> {
    registry: &'a Registry<'a>,
    name: &'a OciName,
    digest: &'a Sha256,
    keys: &'a [PublicKey],
    seen: Seen,
    requested: usize,
    /// The first request that failed.
    failed: Option<RegistryError>,
    /// What is wrong with the first answer that could not be used.
    unusable: Option<String>,
}

impl Search<'_> {
    fn referrers(&mut self) -> Result<bool, RegistryError> {
        let referrers = self.registry.referrers(self.name, self.digest);
        let Some(Referrers { found, failed }) = self.usable(referrers)? else { return Ok(false) };
        for referrer in found.iter().filter(|referrer| may_be_signature(referrer)) {
            let Ok(digest) = referrer.sha256() else { continue };
            if !self.may_request() {
                break;
            }
            let manifest = self.registry.manifest(self.name, &digest);
            let Some(Ok(Document::Manifest(manifest))) = self.usable(manifest)? else { continue };
            if !is_attestation(&manifest.annotations) && self.check_layers(&manifest)? {
                return Ok(true);
            }
        }
        failed.map_or(Ok(()), |error| self.usable(Err(error)).map(|_: Option<()>| ()))?;
        Ok(false)
    }

    fn tag(&mut self) -> Result<bool, RegistryError> {
        let resolved = self.registry.manifest_by_tag(self.name, &signature_tag(self.digest));
        match self.usable(resolved)? {
            Some(Resolved { document: Ok(Document::Manifest(manifest)), .. }) => self.check_layers(&manifest),
            _ => Ok(false),
        }
    }

    /// Verifies the signatures in a manifest, of both formats.
    fn check_layers(&mut self, manifest: &Manifest) -> Result<bool, RegistryError> {
        for layer in &manifest.layers {
            let is_valid = match layer.annotations.get(SIGNATURE) {
                _ if layer.media_type.starts_with(BUNDLE) => {
                    self.check(layer, |bundle, search| verify_bundle(bundle, search.digest, search.keys))?
                }
                Some(signature) if layer.media_type == PAYLOAD => {
                    let is_keyless = layer.annotations.contains_key(CERTIFICATE);
                    self.check(layer, |payload, search| {
                        verify_payload(payload, signature, is_keyless, search.digest, search.keys)
                    })?
                }
                _ => false,
            };
            if is_valid {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Counts a request.
    fn may_request(&mut self) -> bool {
        self.requested += 1;
        self.requested <= MAX_REQUESTS
    }

    /// Requests a layer and verifies it. Whatever is wrong with one signature, another may be valid.
    fn check(
        &mut self,
        layer: &Descriptor,
        verify: impl FnOnce(&[u8], &Self) -> Verdict,
    ) -> Result<bool, RegistryError> {
        if layer.size > MAX_SIGNATURE_BYTES {
            return Ok(false);
        }
        let Ok(digest) = layer.sha256() else { return Ok(self.seen.add(Verdict::Malformed)) };
        if !self.may_request() {
            return Ok(false);
        }
        let bytes = self.registry.small_blob(self.name, &digest, MAX_SIGNATURE_BYTES);
        let Some(bytes) = self.usable(bytes)? else { return Ok(false) };
        let verdict = verify(&bytes, self);
        Ok(self.seen.add(verdict))
    }

    /// An answer, if there is one that can be used.
    ///
    /// # Errors
    /// The registry cannot be used now.
    fn usable<T>(&mut self, result: Result<T, RegistryError>) -> Result<Option<T>, RegistryError> {
        match result {
            Ok(found) => return Ok(Some(found)),
            Err(RegistryError::NotFound(_)) => {}
            Err(RegistryError::Unusable(reason)) => _ = self.unusable.get_or_insert(reason),
            Err(error) if is_of_one(&error) => _ = self.failed.get_or_insert(error),
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}

/// Whether another request to the registry may succeed.
pub(super) fn is_of_one(error: &RegistryError) -> bool {
    matches!(
        error,
        RegistryError::Denied { .. }
            | RegistryError::Upstream(
                UpstreamError::Redirected { .. }
                    | UpstreamError::HttpStatus { retry_after: None, .. }
                    | UpstreamError::HttpStatus { server: Server::Other(_), .. },
            )
    )
}

/// cosign 3 writes the type of its empty configuration into the index: only the manifest has the type of the artifact. The
/// predicate tells attestations, of which there may be many, but only in a list of the registry's own.
fn may_be_signature(referrer: &Descriptor) -> bool {
    !is_attestation(&referrer.annotations) && may_be_of_cosign(referrer)
}

pub(super) fn may_be_of_cosign(referrer: &Descriptor) -> bool {
    let is_known = |kind: &str| ["", EMPTY, SIGNATURE_TYPE].contains(&kind) || kind.starts_with(BUNDLE);
    referrer.artifact_type.as_deref().is_none_or(is_known)
}

pub(super) fn is_attestation(annotations: &HashMap<String, String>) -> bool {
    annotations.get(PREDICATE).is_some_and(|predicate| predicate != SIGNED)
}
