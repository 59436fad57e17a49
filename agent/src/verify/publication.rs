//! Verifies the signature of a publication. Pure.

use serde::Deserialize;
use serde::de::IgnoredAny;
use weir_protocol::commit_id::CommitId;
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::envelope::{Envelope, PUBLICATION_TYPE};
use weir_protocol::json;
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;
use weir_protocol::token::PublicKey;

/// The most key ids that an error names.
const MAX_NAMED: usize = 3;

/// What an origin signed about a service. Fields that decide nothing here are not read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct SignedPublication {
    service: ServiceName,
    pub(crate) generation: Generation,
    pub(crate) digest: TarballDigest,
    pub(crate) commit: Option<CommitId>,
    pub(crate) revision_id: Option<RevisionId>,
    pub(crate) version: Option<SourceVersion>,
    /// Anything but `null`: it is for other clients than this one.
    #[serde(default)]
    selector: Option<IgnoredAny>,
}

/// Why a publication was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProofError {
    #[error("no entry of `trust` names this service: add one with the public keys of its origin")]
    NoKeys,
    #[error("the descriptor cannot be read: {0}")]
    Malformed(String),
    #[error("the publication is not signed, and `trust` requires a signature: give its origin a key (`[signing]`)")]
    Unsigned,
    #[error("no key of `trust` signed the publication; its signatures name {0}")]
    NotTrusted(String),
    #[error("the signed publication is for the service `{0}`")]
    OtherService(ServiceName),
    #[error("the signed publication is for other clients (`selector`): upgrade this agent, or give it another service")]
    OtherSelector,
    #[error("the edge offers {offered}, and the origin signed {signed} under generation {generation}")]
    OtherDigest { offered: TarballDigest, signed: TarballDigest, generation: Generation },
}

impl ProofError {
    /// One of [`PROOF_FAILURES`](crate::metrics::PROOF_FAILURES).
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NoKeys => "no_keys",
            Self::Malformed(_) => "malformed",
            Self::Unsigned => "unsigned",
            Self::NotTrusted(_) => "signature",
            Self::OtherService(_) => "service",
            Self::OtherSelector => "selector",
            Self::OtherDigest { .. } => "digest",
        }
    }
}

impl SignedPublication {
    /// The publication of a descriptor, from its envelope alone: the copy beside it proves nothing.
    ///
    /// # Errors
    /// None of `keys` signed it, or it is not for this service and client.
    pub(crate) fn verify<'k>(
        descriptor: &[u8],
        service: &ServiceName,
        keys: impl IntoIterator<Item = &'k PublicKey>,
    ) -> Result<Self, ProofError> {
        #[derive(Deserialize)]
        struct Descriptor {
            envelope: Option<Envelope>,
        }
        let malformed = |error: serde_json::Error| ProofError::Malformed(error.to_string());
        let Descriptor { envelope } = json::from_slice(descriptor).map_err(malformed)?;
        let envelope = envelope.ok_or(ProofError::Unsigned)?;
        let payload = keys.into_iter().find_map(|key| envelope.signed_by(key, PUBLICATION_TYPE));
        let payload = payload.ok_or_else(|| ProofError::NotTrusted(named(&envelope)))?;
        let read: Self = json::from_slice(&payload).map_err(malformed)?;
        if read.service != *service {
            return Err(ProofError::OtherService(read.service));
        }
        if read.selector.is_some() {
            return Err(ProofError::OtherSelector);
        }
        Ok(read)
    }

    /// Refuses a digest that is not the signed one.
    pub(crate) fn check_digest(&self, offered: TarballDigest) -> Result<(), ProofError> {
        let Self { digest: signed, generation, .. } = *self;
        if offered == signed { Ok(()) } else { Err(ProofError::OtherDigest { offered, signed, generation }) }
    }
}

fn named(envelope: &Envelope) -> String {
    let ids: Vec<&str> = envelope.key_ids().take(MAX_NAMED).map(|id| id.as_str()).collect();
    if ids.is_empty() { "no key".to_owned() } else { ids.join(", ") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use weir_protocol::token::SigningKey;

    use super::*;

    fn publication() -> Value {
        let commit = "a".repeat(40);
        json!({
            "service": "shop", "repository": "shop", "generation": 7, "digest": TarballDigest::of(b"tar"),
            "sha256": "01".repeat(32), "size": 3, "commit": commit, "revision_id": format!("sha1:{commit}"),
            "selector": null, "published_at": "2026-11-20T09:30:00Z", "format": 1, "omitted": [],
        })
    }

    fn signed_as(payload_type: &str, publication: &Value, keys: &[SigningKey]) -> Vec<u8> {
        let text = publication.to_string();
        let envelope = Envelope::sign(payload_type, text.as_bytes(), keys);
        json!({ "publication": publication, "envelope": envelope, "revision": 1 }).to_string().into_bytes()
    }

    fn signed(publication: &Value, keys: &[SigningKey]) -> Vec<u8> {
        signed_as(PUBLICATION_TYPE, publication, keys)
    }

    #[test]
    fn only_what_a_pinned_key_signed_for_this_service_and_client_is_accepted() {
        let both = [(); 2].map(|()| SigningKey::generate().unwrap().0);
        let (keys, other) = both.split_at(1);
        let (pinned, stranger) = (keys[0].public().clone(), other[0].public().clone());
        let shop: ServiceName = "shop".parse().unwrap();
        let verify = |bytes: &[u8]| SignedPublication::verify(bytes, &shop, [&pinned]);
        for keys in [keys, &both] {
            let read = verify(&signed(&publication(), keys)).unwrap();
            assert_eq!((read.generation, read.digest), (7, TarballDigest::of(b"tar")));
            assert_eq!(read.revision_id.unwrap().as_str(), format!("sha1:{}", "a".repeat(40)));
        }
        let with = |key: &str, value: Value| {
            let mut publication = publication();
            publication[key] = value;
            verify(&signed(&publication, keys))
        };
        assert_eq!(with("service", "bank".into()), Err(ProofError::OtherService("bank".parse().unwrap())));
        assert_eq!(with("selector", json!({"ring": "canary"})), Err(ProofError::OtherSelector));
        assert!(matches!(with("generation", json!(-1)), Err(ProofError::Malformed(_))));
        assert!(with("later", json!({})).is_ok(), "fields of later versions are ignored");

        let mut chart = publication();
        chart.as_object_mut().unwrap().remove("commit");
        (chart["revision_id"], chart["version"]) = ("helm:1.2.3+sha256:aa".into(), "1.2.3".into());
        let read = verify(&signed(&chart, keys)).unwrap();
        assert_eq!((read.commit, read.revision_id.unwrap().as_str()), (None, "helm:1.2.3+sha256:aa"));
        assert_eq!(read.version.unwrap().as_str(), "1.2.3");

        let by_other = verify(&signed(&publication(), other));
        assert_eq!(by_other, Err(ProofError::NotTrusted(stranger.id().to_string())));
        assert!(matches!(verify(&signed(&publication(), &[])), Err(ProofError::NotTrusted(_))));
        let as_statement = signed_as("application/vnd.weir.freshness+json", &publication(), keys);
        assert!(matches!(verify(&as_statement), Err(ProofError::NotTrusted(_))), "another type");
        let unsigned = json!({ "publication": publication(), "revision": 1 }).to_string();
        assert_eq!(verify(unsigned.as_bytes()), Err(ProofError::Unsigned));

        // The copy beside the envelope is not read.
        let mut bytes: Value = serde_json::from_slice(&signed(&publication(), keys)).unwrap();
        bytes["publication"]["generation"] = json!(9);
        assert_eq!(verify(bytes.to_string().as_bytes()).unwrap().generation, 7);
        assert!(verify(&signed(&publication(), keys)).unwrap().check_digest(TarballDigest::of(b"x")).is_err());
    }

    proptest! {
        /// Whatever bytes of a descriptor an edge changes, the agent reads what was signed, or nothing.
        #[test]
        fn a_changed_byte_changes_nothing_that_is_accepted(at: prop::sample::Index, to: u8) {
            let (key, _) = SigningKey::generate().unwrap();
            let pinned = key.public().clone();
            let shop: ServiceName = "shop".parse().unwrap();
            let mut bytes = signed(&publication(), &[key]);
            let right = SignedPublication::verify(&bytes, &shop, [&pinned]).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(read) = SignedPublication::verify(&bytes, &shop, [&pinned]) {
                prop_assert_eq!(read, right);
            }
        }
    }
}
