//! A temporary file for a signature: the programs need a file.

use std::io::Write;
use std::path::Path;

use tempfile::NamedTempFile;

use super::SignatureError;

/// The prefix of its name, by which files of a killed process are found.
pub const PREFIX: &str = "signature-";

/// Removed when it is dropped.
pub struct SignatureFile(NamedTempFile);

impl SignatureFile {
    /// Writes a signature into a folder for temporary files.
    pub fn write(signature: &[u8], scratch: &Path) -> Result<Self, SignatureError> {
        let file = tempfile::Builder::new().prefix(PREFIX).tempfile_in(scratch);
        let written = file.and_then(|mut file| file.write_all(signature).map(|()| file));
        written.map(Self).map_err(|error| SignatureError::Unusable(format!("a signature cannot be stored: {error}")))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}
