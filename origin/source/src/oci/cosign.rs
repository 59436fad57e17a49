//! Finds the signatures of a manifest that cosign pushed, and verifies them.

use weir_protocol::digest::Sha256;
use weir_upstream::{Server, UpstreamError};

use super::manifest::{Descriptor, Document};
use super::{OciName, Registry, RegistryError};
use crate::cosign::{PublicKey, SIGNED, Seen, Verdict, verify_bundle, verify_payload};

/// The most signatures of a manifest that are requested in each place.
const MAX_SIGNATURES: usize = 16;

/// The largest signature with what it signs, in bytes.
const MAX_SIGNATURE_BYTES: u64 = 64 << 10;

/// The media types of layers begin so, and the types of artifacts.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";
const PREDICATE: &str = "dev.sigstore.bundle.predicateType";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// The layers of `cosign sign --new-bundle-format=false`, and the annotations of each.
const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
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
    if search.bundles()? {
        return Ok(Ok(()));
    }
    // Bundles, which whoever may push can add, hide no signature in the other place.
    search.requested = 0;
    if search.payloads()? {
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
    fn bundles(&mut self) -> Result<bool, RegistryError> {
        let referrers = self.registry.referrers(self.name, self.digest);
        let referrers = self.usable(referrers)?.unwrap_or_default();
        for referrer in referrers.iter().filter(|referrer| may_be_bundle(referrer)).take(MAX_SIGNATURES) {
            let Ok(digest) = referrer.sha256() else { continue };
            let manifest = self.registry.manifest(self.name, &digest);
            let Some(Ok(Document::Manifest(manifest))) = self.usable(manifest)? else { continue };
            for layer in manifest.layers.iter().filter(|layer| layer.media_type.starts_with(BUNDLE)) {
                if self.check(layer, |bundle, search| verify_bundle(bundle, search.digest, search.keys))? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn payloads(&mut self) -> Result<bool, RegistryError> {
        let tag = format!("sha256-{}.sig", self.digest);
        let resolved = self.registry.manifest_by_tag(self.name, &tag);
        let Some(resolved) = self.usable(resolved)? else { return Ok(false) };
        let Ok(Document::Manifest(manifest)) = resolved.document else { return Ok(false) };
        for layer in manifest.layers.iter().filter(|layer| layer.media_type == PAYLOAD) {
            let Some(signature) = layer.annotations.get(SIGNATURE) else { continue };
            let is_keyless = layer.annotations.contains_key(CERTIFICATE);
            let verify = |payload: &[u8], search: &Self| {
                verify_payload(payload, signature, is_keyless, search.digest, search.keys)
            };
            if self.check(layer, verify)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Requests a layer and verifies it. Whatever is wrong with one signature, another may be valid.
    fn check(
        &mut self,
        layer: &Descriptor,
        verify: impl FnOnce(&[u8], &Self) -> Verdict,
    ) -> Result<bool, RegistryError> {
        if self.requested >= MAX_SIGNATURES || layer.size > MAX_SIGNATURE_BYTES {
            return Ok(false);
        }
        self.requested += 1;
        let Ok(digest) = layer.sha256() else { return Ok(self.seen.add(Verdict::Malformed)) };
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
            Err(
                error @ (RegistryError::Denied { .. }
                | RegistryError::Upstream(
                    UpstreamError::Redirected { .. }
                    | UpstreamError::HttpStatus { retry_after: None, .. }
                    | UpstreamError::HttpStatus { server: Server::Other(_), .. },
                )),
            ) => _ = self.failed.get_or_insert(error),
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}

/// cosign 3 writes the type of its empty configuration into the index: only the manifest has the type of the artifact. The
/// predicate tells attestations, of which there may be many, but only in a list of the registry's own.
fn may_be_bundle(referrer: &Descriptor) -> bool {
    let is_attestation = referrer.annotations.get(PREDICATE).is_some_and(|predicate| predicate != SIGNED);
    !is_attestation
        && referrer
            .artifact_type
            .as_deref()
            .is_none_or(|kind| kind.is_empty() || kind == EMPTY || kind.starts_with(BUNDLE))
}
