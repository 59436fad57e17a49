//! What is stored bears the signatures of the configured keys, all of them and no others.
//!
//! Whoever writes a descriptor signs it, so only a change of keys leaves others behind. They are signed anew at the start
//! that finds the change, under the next revision: that is how edges come to know. Which keys all is signed with is
//! remembered, so that a start without a change reads nothing.

use std::sync::Arc;

use redb::{ReadableTable, TableDefinition};

use super::decision;
use super::rows::{CURRENT, SUPERSEDED, parse};
use super::state::{State, StateError, checked};
use crate::signing::Signer;

/// `keys` → the lines of the public keys that everything is signed with.
pub(super) const SIGNATURES: TableDefinition<'_, &str, &str> = TableDefinition::new("signatures_v1");

/// The only row.
pub(super) const KEYS: &str = "keys";

impl State {
    /// Has everything signed from now on, and signs what is stored when that was signed with other keys: how many
    /// descriptors that were. All or nothing.
    pub(crate) fn sign_with(&mut self, signer: Arc<Signer>) -> Result<usize, StateError> {
        self.signer = signer;
        let keys = self.signer.public_keys();
        self.write(|transaction| {
            let mut signed = 0;
            let mut signatures = transaction.open_table(SIGNATURES)?;
            let known = signatures.get(KEYS)?.map(|row| row.value().to_owned());
            if known.unwrap_or_default() == keys {
                return Ok(0);
            }
            let mut current = transaction.open_table(CURRENT)?;
            let services: Vec<String> =
                current.iter()?.map(|row| Ok(row?.0.value().to_owned())).collect::<Result<_, StateError>>()?;
            for service in services {
                let anew = current.get(service.as_str())?.and_then(|row| self.signed_anew(&service, row.value()));
                if let Some(bytes) = anew {
                    current.insert(service.as_str(), bytes.as_ref())?;
                    signed += 1;
                }
            }
            let mut superseded = transaction.open_table(SUPERSEDED)?;
            let version = |key: (&str, &[u8; 32])| (key.0.to_owned(), *key.1);
            let versions: Vec<(String, [u8; 32])> =
                superseded.iter()?.map(|row| Ok(version(row?.0.value()))).collect::<Result<_, StateError>>()?;
            for (service, digest) in versions {
                let key = (service.as_str(), &digest);
                let anew = superseded
                    .get(key)?
                    .and_then(|row| Some((row.value().0, self.signed_anew(&service, row.value().1)?)));
                if let Some((at, bytes)) = anew {
                    superseded.insert(key, (at, bytes.as_ref()))?;
                    signed += 1;
                }
            }
            signatures.insert(KEYS, keys.as_str())?;
            Ok(signed)
        })
    }

    /// A stored descriptor as the keys sign it. `None`: it stays as it is, because it is of another version of the program,
    /// or would become too large.
    fn signed_anew(&self, service: &str, stored: &[u8]) -> Option<bytes::Bytes> {
        let stored = parse(service, stored).ok()?;
        match checked(self.signer.descriptor(decision::rewritten(&stored))) {
            Ok(signed) => Some(signed.bytes().clone()),
            Err(error) => {
                tracing::warn!(service = %stored.publication().service, %error, "it stays signed as it was");
                None
            }
        }
    }
}
