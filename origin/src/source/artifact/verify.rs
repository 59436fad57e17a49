//! Fetches the signatures of versions, and verifies them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weir_protocol::digest::Sha256;

use super::super::error::UpstreamError;
use super::super::helm::{MAX_PROVENANCE_BYTES, provenance_url, signed_digest};
use super::super::http::{Body, BodyError, Client};
use super::super::signatures::{ClearSigned, SignatureError, gpgv};
use super::super::{PollRequest, ServiceFailure};
use super::fetch::{NotFetched, is_of_all};
use super::signatures::Policy;
use super::state::Unverified;
use super::{ArtifactSource, Chosen, Location};
use crate::data_dir::without_path;

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
    /// Verifies what has not been verified yet. An error ends the poll: nothing else can be fetched either.
    pub(super) fn verify(
        &self,
        client: &Client<'_>,
        policy: &Policy,
        request: &PollRequest<'_>,
    ) -> Result<(), UpstreamError> {
        client.session().set_step("verify");
        let unverified = self.state().unverified(Instant::now());
        for Unverified { chosen, sha256 } in unverified {
            request.progress.preparing();
            let verified = self.verify_one(client, policy, &chosen, sha256)?;
            // A program may have been interrupted.
            client.session().check_interrupt()?;
            let result = verified.as_ref().map_or_else(|not| not.error.as_str(), |_| "verified");
            self.shared.metrics.verifications.with_label_values(&[request.config.name.as_str(), result]).inc();
            let verified = verified.map_err(|NotVerified { error, retry_after }| NotFetched {
                failure: ServiceFailure::transient("verify", error.to_string()),
                retry_after,
            });
            self.state().signatures.checked(&chosen, verified, request.config.poll_interval, Instant::now());
        }
        Ok(())
    }

    fn verify_one(
        &self,
        client: &Client<'_>,
        policy: &Policy,
        chosen: &Chosen,
        known: Option<Sha256>,
    ) -> Result<Result<Sha256, NotVerified>, UpstreamError> {
        if let Err(reason) = &policy.keys {
            return Ok(Err(SignatureError::Unusable(reason.clone()).into()));
        }
        let document = match provenance(client, chosen) {
            Ok(document) => document,
            Err(BodyError::Upstream(error)) if is_of_all(&error, client, chosen) => return Err(error),
            Err(error) => return Ok(Err(no_provenance(chosen, error))),
        };
        let signed = self.signed_digest(client, policy, chosen, &document);
        Ok(signed.map_err(NotVerified::from).and_then(|signed| match known.filter(|known| *known != signed) {
            None => Ok(signed),
            Some(known) => Err(SignatureError::Refused(format!(
                "{} has the SHA-256 digest `{known}`, but its signer states `{signed}`: publish it again, or sign it again",
                chosen.label
            ))
            .into()),
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
        let signed = std::str::from_utf8(document).ok().and_then(ClearSigned::parse);
        let ClearSigned { text, signature } = signed.ok_or_else(|| {
            refused("its provenance (`.prov`) is not a signed text: sign it with `helm package --sign`")
        })?;
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
        let name = chosen.chart.as_deref().unwrap_or_default();
        signed_digest(&text, name, chosen.version.as_deref().unwrap_or_default()).map_err(|reason| refused(&reason))
    }
}

/// Downloads the provenance of a chart.
fn provenance(client: &Client<'_>, chosen: &Chosen) -> Result<Vec<u8>, BodyError> {
    let mut last = None;
    for location in &chosen.blob.at {
        let Location::Url(archive) = location else { continue };
        let url = provenance_url(archive);
        let response = client.download(&url, url.as_str(), &HashMap::new());
        match response.and_then(|response| client.expect_success(response)) {
            Ok(response) => {
                let mut document = Vec::new();
                return Body::new(client, response, MAX_PROVENANCE_BYTES).write_to(&mut document).map(|_| document);
            }
            Err(error) => last = Some(error),
        }
    }
    let nowhere = || UpstreamError::NotFound { step: "verify", cause: "it has no URL".to_owned() };
    Err(BodyError::Upstream(last.unwrap_or_else(nowhere)))
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
        BodyError::Upstream(error) => {
            let reason = format!("{label} has a provenance (`.prov`) that cannot be fetched: {error}");
            NotVerified { error: SignatureError::Unusable(reason), retry_after: error.retry_after() }
        }
        BodyError::Write(error) => SignatureError::Unusable(without_path(&error).to_string()).into(),
    }
}
