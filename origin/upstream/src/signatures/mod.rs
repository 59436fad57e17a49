//! Signatures that outside programs verify: what all of them share, and those of OpenPGP, by [`gpgv`].

mod clear_signed;
pub mod gpgv;
mod packet;
mod signature_file;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

pub use clear_signed::ClearSigned;
pub use signature_file::{PREFIX as SIGNATURE_FILE_PREFIX, SignatureFile};

use crate::outside_program::ProgramError;

/// The timeout of a program for one signature.
pub const PROGRAM_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a signature does not count.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// The policy forbids it.
    #[error("{0}")]
    Refused(String),
    /// It cannot be verified: a program or a file is missing.
    #[error("{0}")]
    Unusable(String),
}

impl SignatureError {
    /// The result as a metric label.
    pub fn as_str(&self) -> &'static str {
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
pub fn read_prefix(key: &str, path: &Path) -> Result<Vec<u8>, SignatureError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| SignatureError::Unusable(format!("`{key}` cannot be read: {error}")))
}
