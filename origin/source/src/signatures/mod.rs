//! Signatures of what is followed. [`gpgv`] verifies those of OpenPGP, for every kind of source; `cosign` those of artifacts
//! in registries.

mod clear_signed;
mod cosign;
#[cfg(any(test, feature = "fuzzing"))]
mod cosign_data;
#[cfg(feature = "fuzzing")]
mod fuzz;
pub(crate) mod gpgv;
mod packet;
mod public_key;
mod signature_file;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

pub(crate) use clear_signed::ClearSigned;
pub(crate) use cosign::{SIGNED, Seen, Verdict, verify_bundle, verify_payload};
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_cosign;
pub use public_key::PublicKey;
pub(crate) use signature_file::{PREFIX as SIGNATURE_FILE_PREFIX, SignatureFile};

use crate::outside_program::ProgramError;

/// The timeout of a program for one signature.
pub(crate) const PROGRAM_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a signature does not count.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignatureError {
    /// The policy forbids it.
    #[error("{0}")]
    Refused(String),
    /// It cannot be verified: a program or a file is missing.
    #[error("{0}")]
    Unusable(String),
}

impl SignatureError {
    /// The result as a metric label.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Unusable(_) => "failed",
        }
    }
}

impl From<ProgramError> for SignatureError {
    fn from(error: ProgramError) -> Self {
        Self::Unusable(error.to_string())
    }
}

/// The first bytes of a file with keys, which prove that it can be read.
pub(crate) fn read_prefix(key: &str, path: &Path) -> Result<Vec<u8>, SignatureError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| SignatureError::Unusable(format!("`{key}` cannot be read: {error}")))
}
