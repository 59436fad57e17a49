//! `[signing]`: the keys that sign publications and heartbeats.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weir_protocol::token::SigningKey;
use weir_runtime::config::ConfigError;
use weir_runtime::key_pair;

/// The most keys: two are needed to change one.
const MAX_KEYS: usize = 8;

/// Keys that sign publications and heartbeats. Without keys nothing is signed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SigningConfig {
    /// Files of private keys, as `weir-origin keys new` writes them. Each key signs every publication. At most 8. Each file
    /// must have the mode 0600, 0400 or 0440.
    pub keys: Vec<PathBuf>,
    /// Sign the manifest of each OCI form, too, so that `cosign verify --key` accepts it at an edge: in cosign's older form, and
    /// as a bundle. A manifest of an upstream is signed only if `verify` found signatures of cosign. Needs keys. All origins of
    /// a cluster need the same.
    pub cosign: bool,
}

impl SigningConfig {
    /// Reads the keys.
    ///
    /// # Errors
    /// A file cannot be used, or others could read it; the message names it.
    pub fn read(&self) -> Result<Vec<SigningKey>, ConfigError> {
        let mut keys: Vec<SigningKey> = Vec::with_capacity(self.keys.len());
        for path in &self.keys {
            let key = key_pair::read_private(path)
                .map_err(|error| ConfigError::invalid(format!("[signing] keys: {error}")))?;
            if keys.iter().any(|other| other.public() == key.public()) {
                let path = path.display();
                return Err(ConfigError::invalid(format!(
                    "[signing] keys: {path} contains the same key as another file"
                )));
            }
            keys.push(key);
        }
        Ok(keys)
    }

    pub(super) fn error(&self) -> Option<String> {
        match self.keys.len() {
            0 if self.cosign => Some("[signing] cosign: needs `keys`, with which manifests are signed".to_owned()),
            0..=MAX_KEYS => None,
            more => Some(format!("[signing] keys: {more} files, but at most {MAX_KEYS} are allowed")),
        }
    }
}
