//! Fetches the signatures of versions, and verifies them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weir_protocol::digest::Sha256;
use weir_upstream::http::{Body, BodyError, Client};
use weir_upstream::signatures::{ClearSigned, SignatureError, gpgv};
use weir_upstream::{FetchProgress, UpstreamError, without_path};

use super::super::helm::{ChartLayers, MAX_PROVENANCE_BYTES, provenance_url, signed_digest};
use super::super::oci::{OciName, Registry, RegistryError, verify_cosign};
use super::super::{PollRequest, ServiceFailure};
use super::fetch::{Shown, is_of_all, of_one};
use super::not_fetched::NotFetched;
use super::signatures::{Policy, not_as_signed};
use super::state::Unverified;
use super::{ArtifactSource, Chosen, Location, split};

/// Why the signature of one version does not count.
struct NotVerified {
    error: SignatureError,
    /// What a host that has no index demands.
    retry_after: Option<Duration>,
}

impl From<SignatureError> for NotVerified {
    fn from(error: SignatureError) -> Self {
        Self { error, retry_after: None }
    }
}

impl ArtifactSource {
    /// Verifies a version. Returns whether its signatures are valid. An error ends the poll: nothing else can be fetched
    /// either.
    pub(super) fn verify(
        &self,
        client: &Client<'_>,
        policy: &Policy,
        Unverified { chosen, sha256 }: &Unverified,
        request: &PollRequest<'_>,
    ) -> Result<bool, UpstreamError> {
        let verified = self.verify_one(client, policy, chosen, *sha256, request);
        let (verified, ends) = split(verified, |error| not_fetched(chosen, error));
        let result = verified.as_ref().map_or_else(|not| not.error.as_str(), |_| "verified");
        self.shared.metrics.verifications.with_label_values(&[request.config.name.as_str(), result]).inc();
        let verified = verified.map_err(|NotVerified { error, retry_after }| NotFetched {
            failure: ServiceFailure::transient("verify", error.to_string()),
            retry_after,
            is_incomplete: false,
        });
        let is_valid = verified.is_ok();
        self.state().signatures.checked(chosen, verified, request.config.poll_interval, Instant::now());
        // A program may have been interrupted.
        client.session().check_interrupt()?;
        ends.map_or(Ok(is_valid), Err)
    }

    fn verify_one(
        &self,
        client: &Client<'_>,
        policy: &Policy,
        chosen: &Chosen,
        known: Option<Sha256>,
        request: &PollRequest<'_>,
    ) -> Result<Result<Sha256, NotVerified>, UpstreamError> {
        let keys = match &policy.keys {
            Ok(keys) => keys,
            Err(reason) => return Ok(Err(SignatureError::Unusable(reason.clone()).into())),
        };
        if let Some(((registry, name), signed)) = chosen.blob.in_registry().zip(chosen.signed)
            && !keys.cosign.is_empty()
        {
            let registry = self.registry(client, registry)?;
            let verified = match verify_cosign(&registry, name, &signed, &keys.cosign) {
                Ok(verified) => verified.map_err(|reason| format!("{}: {reason}", chosen.label)),
                Err(error) => match error.of_all(name) {
                    error if is_of_all(&error, client, chosen) => return Err(error),
                    error => return Ok(Err(not_fetched(chosen, &error))),
                },
            };
            // The manifest that is signed has the digest of the archive.
            let digest = chosen.blob.sha256.ok_or_else(|| format!("{} has no digest", chosen.label));
            return Ok(verified.and(digest).map_err(|reason| SignatureError::Refused(reason).into()));
        }
        let document = match self.provenance(client, chosen, request.progress) {
            Ok(document) => document,
            Err(BodyError::Upstream(error)) if is_of_all(&error, client, chosen) => return Err(error),
            Err(error) => return Ok(Err(no_provenance(chosen, error))),
        };
        let signed = self.signed_digest(client, policy, chosen, &document);
        if signed.is_ok() && matches!(chosen.blob.at, Location::Url(_)) {
            self.state().signatures.keep_provenance(chosen, document);
        }
        Ok(signed.map_err(NotVerified::from).and_then(|signed| match known.filter(|known| *known != signed) {
            None => Ok(signed),
            Some(known) => {
                let reason = format!("{} {}", chosen.label, not_as_signed(&known, &signed));
                Err(SignatureError::Refused(reason).into())
            }
        }))
    }

    /// Verifies a provenance. Returns the digest that it states.
    fn signed_digest(
        &self,
        client: &Client<'_>,
        policy: &Policy,
        chosen: &Chosen,
        document: &[u8],
    ) -> Result<Sha256, SignatureError> {
        let refused = |reason: &str| SignatureError::Refused(format!("{}: {reason}", chosen.label));
        let signed = ClearSigned::parse(&String::from_utf8_lossy(document));
        let ClearSigned { text, signature } =
            signed.map_err(|reason| refused(&format!("its provenance (`.prov`) {reason}")))?;
        let keyring = policy.config.pgp_keyring.as_deref();
        let keyring = keyring.ok_or_else(|| SignatureError::Unusable("`pgp_keyring` is not configured".to_owned()))?;
        let scratch = self.spools.directory();
        let scratch = scratch.map_err(|error| {
            SignatureError::Unusable(format!("a signature cannot be stored: {}", without_path(&error)))
        })?;
        let verified = gpgv::verify(keyring, text.as_bytes(), &signature, scratch, client.session().interrupt());
        verified.map_err(|error| match error {
            SignatureError::Refused(reason) => refused(&reason),
            unusable @ SignatureError::Unusable(_) => unusable,
        })?;
        // In a registry, a chart may be below others.
        let name = chosen.chart.as_deref().and_then(|chart| chart.rsplit('/').next()).unwrap_or_default();
        signed_digest(&text, name, chosen.version.as_deref().unwrap_or_default()).map_err(|reason| refused(&reason))
    }

    /// Downloads the provenance of a chart.
    fn provenance(&self, client: &Client<'_>, chosen: &Chosen, progress: &FetchProgress) -> Result<Vec<u8>, BodyError> {
        match &chosen.blob.at {
            Location::Url(archive) => {
                let url = provenance_url(archive);
                let response = client.download(&url, url.as_str(), &HashMap::new());
                let response = response.and_then(|response| client.expect_success(response));
                let body = Body::new(client, response.map_err(BodyError::Upstream)?, MAX_PROVENANCE_BYTES);
                let mut document = Vec::new();
                body.write_to(&mut Shown { file: &mut document, progress }).map(|_| document)
            }
            Location::Chart { registry, name, layers } => {
                let registry = self.registry(client, registry).map_err(BodyError::Upstream)?;
                layer(&registry, name, Ok(*layers)).map_err(BodyError::Upstream)
            }
            Location::Tag(tag) => {
                let registry = self.registry(client, &tag.registry).map_err(BodyError::Upstream)?;
                layer(&registry, &tag.name, tag.layers(&registry)).map_err(BodyError::Upstream)
            }
            // Artifacts are signed by cosign.
            Location::Blob { .. } => Err(BodyError::Upstream(nowhere("it is not a chart"))),
        }
    }
}

/// The provenance in a registry: a layer beside the archive.
fn layer(
    registry: &Registry<'_>,
    name: &OciName,
    layers: Result<ChartLayers, RegistryError>,
) -> Result<Vec<u8>, UpstreamError> {
    let of_one = |error| of_one("verify", error, name);
    let digest = layers.map_err(of_one)?.provenance.ok_or_else(|| nowhere("its manifest has no such layer"))?;
    registry.small_blob(name, &digest, MAX_PROVENANCE_BYTES).map_err(of_one)
}

fn nowhere(cause: &str) -> UpstreamError {
    UpstreamError::NotFound { step: "verify", cause: cause.to_owned() }
}

fn no_provenance(chosen: &Chosen, error: BodyError) -> NotVerified {
    let label = &chosen.label;
    let refused = |reason: String| SignatureError::Refused(format!("{label} {reason}"));
    match error {
        BodyError::TooLarge => {
            refused(format!("has a provenance (`.prov`) of more than {MAX_PROVENANCE_BYTES} bytes")).into()
        }
        BodyError::Upstream(UpstreamError::NotFound { cause: answer, .. }) => refused(format!(
            "has no provenance (`.prov`) alongside its archive ({answer}): sign it with `helm package --sign`"
        ))
        .into(),
        // Object storage answers 403 for what is missing, unless the credentials may list its folder.
        BodyError::Upstream(error @ UpstreamError::Authenticate(_)) => SignatureError::Refused(format!(
            "the provenance (`.prov`) of {label} cannot be fetched, or is missing: {error}"
        ))
        .into(),
        BodyError::Upstream(error) => not_fetched(chosen, &error),
        BodyError::Write(error) => SignatureError::Unusable(without_path(&error).to_string()).into(),
    }
}

fn not_fetched(chosen: &Chosen, error: &UpstreamError) -> NotVerified {
    let reason = format!("the signature of {} cannot be fetched: {error}", chosen.label);
    NotVerified { error: SignatureError::Unusable(reason), retry_after: error.retry_after() }
}
