//! Files of public keys: one `<key id> <public key>` per line; `#` starts a comment. `weir token key` writes such
//! lines.

use super::{AccessList, AccessListError, lines};
use crate::token::{KeyId, PublicKey};

impl AccessList {
    /// Adds the contents of a key file.
    ///
    /// # Errors
    /// A line is malformed, two keys have one id, or there are too many.
    pub fn add_key_file(&mut self, text: &str) -> Result<(), AccessListError> {
        for (line, words) in lines(text) {
            let wrong = |message: String| AccessListError::Line { line, message };
            let [id, key] = words[..] else {
                return Err(wrong("expected `<key id> <public key>`, as `weir token key` writes it".to_owned()));
            };
            let id: KeyId = id.parse().map_err(|error: crate::token::IdError| wrong(error.to_string()))?;
            self.add_key(PublicKey::decode(id, key).map_err(|error| wrong(error.to_string()))?)?;
        }
        Ok(())
    }
}

/// The line of a key in a key file.
pub fn key_line(key: &PublicKey) -> String {
    format!("{} {}", key.id(), key.encoded())
}
