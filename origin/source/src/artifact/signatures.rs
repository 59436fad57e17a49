//! Pure: which of the followed versions have the signatures that the repository needs. Each is checked once for each policy.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weir_protocol::digest::Sha256;
use weir_upstream::VerifyConfig;

use super::Chosen;
use super::back_off::Failed;
use super::not_fetched::NotFetched;
use crate::cosign::PublicKey;

const COSIGN_KEYS: &str = "cosign_keys";

/// What the files of a policy contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    digest: blake3::Hash,
    /// Of `cosign_keys`.
    pub(super) cosign: Vec<PublicKey>,
}

/// Which signatures count: the policy of a repository and its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) config: VerifyConfig,
    /// Or why a file cannot be used.
    pub(super) keys: Result<Keys, String>,
}

impl Policy {
    /// Reads the files of a policy.
    pub(super) fn read(config: &VerifyConfig) -> Self {
        Self { config: config.clone(), keys: Keys::read(config) }
    }
}

impl Keys {
    fn read(config: &VerifyConfig) -> Result<Self, String> {
        let (mut hasher, mut cosign) = (blake3::Hasher::new(), Vec::new());
        for (key, file) in config.files() {
            // As in all messages of the step `verify`.
            let name = key.strip_prefix("verify.").unwrap_or(key);
            let bytes = std::fs::read(file).map_err(|error| format!("`{name}` cannot be read: {error}"))?;
            hasher.update(blake3::hash(&bytes).as_bytes());
            if name == COSIGN_KEYS {
                let file = file.file_name().unwrap_or_default().to_string_lossy();
                let key = PublicKey::from_pem(&bytes);
                cosign.push(key.map_err(|reason| format!("the file `{file}` that `{name}` names {reason}"))?);
            }
        }
        Ok(Self { digest: hasher.finalize(), cosign })
    }
}

/// The results of the checks.
#[derive(Default)]
pub(super) struct Signatures {
    /// As the last poll read it. `None`: no signature is needed.
    policy: Option<Policy>,
    /// The digests of the archives, as their signers state them.
    checked: HashMap<Chosen, Result<Sha256, Failed>>,
    /// The provenances of charts that have them alongside the archive. They are published with the archive.
    provenances: HashMap<Chosen, Vec<u8>>,
}

impl Signatures {
    /// Adopts a policy. What another policy accepted or refused is checked again.
    pub(super) fn set_policy(&mut self, policy: Option<Policy>) {
        if self.policy != policy {
            self.checked.clear();
            self.provenances.clear();
            self.policy = policy;
        }
    }

    /// Forgets what no service follows any more.
    pub(super) fn retain(&mut self, is_followed: impl Fn(&Chosen) -> bool) {
        self.checked.retain(|chosen, _| is_followed(chosen));
        self.provenances.retain(|chosen, _| is_followed(chosen));
    }

    /// Whether a version must be checked now.
    pub(super) fn needs_check(&self, chosen: &Chosen, now: Instant) -> bool {
        let waits = || {
            self.checked.get(chosen).is_some_and(|checked| checked.as_ref().map_or_else(|it| it.waits(now), |_| true))
        };
        self.policy.is_some() && !waits()
    }

    /// When a version that failed is checked again.
    pub(super) fn failed_until(&self, chosen: &Chosen) -> Option<Instant> {
        self.checked.get(chosen)?.as_ref().err()?.until
    }

    /// Makes a version be checked again: its archive is not the signed one, and the provenance may be repaired meanwhile.
    pub(super) fn forget(&mut self, chosen: &Chosen) {
        self.checked.remove(chosen);
        self.provenances.remove(chosen);
    }

    /// Keeps a provenance that was verified, to publish it.
    pub(super) fn keep_provenance(&mut self, chosen: &Chosen, provenance: Vec<u8>) {
        self.provenances.insert(chosen.clone(), provenance);
    }

    /// The provenance of a version, if it is alongside the archive and was verified.
    pub(super) fn provenance(&self, chosen: &Chosen) -> Option<&Vec<u8>> {
        self.provenances.get(chosen)
    }

    /// The keys of cosign that count for a version that was verified.
    pub(super) fn cosign_keys(&self, chosen: &Chosen) -> Vec<PublicKey> {
        let keys = self.policy.as_ref().and_then(|policy| policy.keys.as_ref().ok());
        let keys = keys.filter(|_| self.digest(chosen).is_some());
        keys.map(|keys| keys.cosign.clone()).unwrap_or_default()
    }

    /// Takes the result of a check.
    pub(super) fn checked(
        &mut self,
        chosen: &Chosen,
        result: Result<Sha256, NotFetched>,
        interval: Duration,
        now: Instant,
    ) {
        let before = self.checked.get(chosen).and_then(|checked| checked.as_ref().err());
        let checked = result.map_err(|error| Failed::after(before, error, interval, now));
        self.checked.insert(chosen.clone(), checked);
    }

    /// The policy, as the last poll read it.
    pub(super) fn config(&self) -> Option<&VerifyConfig> {
        self.policy.as_ref().map(|policy| &policy.config)
    }

    /// Ends all back-offs.
    pub(super) fn reset_back_offs(&mut self) {
        self.checked.retain(|_, checked| checked.is_ok());
    }

    /// Whether a version may be downloaded.
    pub(super) fn allow(&self, chosen: &Chosen) -> bool {
        self.policy.is_none() || self.digest(chosen).is_some()
    }

    /// The digest of the archive, as its signer states it.
    pub(super) fn digest(&self, chosen: &Chosen) -> Option<Sha256> {
        self.checked.get(chosen)?.as_ref().ok().copied()
    }

    /// Whether a version may be published under this policy, which may be newer than the last poll. `sha256`: the digest of
    /// its archive, once it is known.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn accept(
        &self,
        chosen: &Chosen,
        sha256: Option<Sha256>,
        policy: Option<&VerifyConfig>,
    ) -> Result<(), String> {
        if policy.is_none() {
            return Ok(());
        }
        let checked = self.checked.get(chosen).filter(|_| self.config() == policy);
        match checked {
            Some(Ok(signed)) => match sha256.filter(|sha256| sha256 != signed) {
                None => Ok(()),
                Some(sha256) => Err(format!("{} {}", chosen.label, not_as_signed(&sha256, signed))),
            },
            Some(Err(failed)) => Err(failed.failure.reason.clone()),
            None => Err(format!("the signature of {} is verified with the next poll", chosen.label)),
        }
    }
}

/// The end of a sentence that begins with the name of a version.
pub(super) fn not_as_signed(sha256: &Sha256, signed: &Sha256) -> String {
    format!("has the SHA-256 digest `{sha256}`, but its signer states `{signed}`: publish it again, or sign it again")
}
