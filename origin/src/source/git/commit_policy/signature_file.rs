//! A signature as a file, because both programs want it as one.

use std::io::Write;
use std::path::Path;

use tempfile::NamedTempFile;

use super::VerifyError;

/// What its name begins with: after a kill it stays, and is known by this.
pub(crate) const PREFIX: &str = "signature-";

/// Goes when it is dropped.
pub(super) struct SignatureFile(NamedTempFile);

impl SignatureFile {
    pub(super) fn write(signature: &[u8], scratch: &Path) -> Result<Self, VerifyError> {
        let file = tempfile::Builder::new().prefix(PREFIX).tempfile_in(scratch);
        let written = file.and_then(|mut file| file.write_all(signature).map(|()| file));
        written.map(Self).map_err(|error| VerifyError::Unusable(format!("a signature cannot be written down: {error}")))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}
