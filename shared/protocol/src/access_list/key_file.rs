//! A file of public keys: `<key id> <public key>` a line, `#` begins a comment. What `weir token key` writes, and `cat`
//! joins.

use super::{AccessList, AccessListError, lines};
use crate::token::{KeyId, PublicKey};

impl AccessList {
    /// Adds the keys of a file.
    ///
    /// # Errors
    /// A line is none of its kind, two keys have one id, or there are too many.
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

/// The line of a key.
pub fn key_line(key: &PublicKey) -> String {
    format!("{} {}", key.id(), key.encoded())
}
