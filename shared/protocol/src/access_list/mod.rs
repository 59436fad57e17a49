//! Which keys verify tokens, and what is revoked: as JSON on the event stream, and as text files that people keep.
//!
//! A denial always wins: where lists are joined, what one of them revokes is revoked.

mod deny_file;
mod key_file;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::token::{KeyId, PublicKey, TokenId, UnixSeconds, has_ended};

pub use deny_file::DenyLine;
pub use key_file::key_line;

/// The largest list that is read, in bytes of JSON. A list within the other bounds is never larger.
pub const MAX_ACCESS_LIST_BYTES: usize = 2 << 20;

/// The most keys of one list.
pub const MAX_KEYS: usize = 100;

/// The most revoked keys of one list.
pub const MAX_REVOKED_KEYS: usize = 1_000;

/// The most denied tokens of one list. Whoever needs more revokes their key.
pub const MAX_DENIED_TOKENS: usize = 10_000;

/// Keys, revoked keys and denied tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessList {
    keys: BTreeMap<KeyId, PublicKey>,
    revoked_keys: BTreeSet<KeyId>,
    /// With the `exp` of the token, from which on nobody needs to remember it.
    denied_tokens: BTreeMap<TokenId, Option<UnixSeconds>>,
}

/// A list cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessListError {
    /// More bytes than [`MAX_ACCESS_LIST_BYTES`].
    #[error("the access list has {0} bytes, more than the limit of {MAX_ACCESS_LIST_BYTES}")]
    TooLarge(usize),
    /// Not JSON, or a field is missing or wrong.
    #[error("the access list cannot be read: {0}")]
    Malformed(String),
    /// A line of a file is none of its kind.
    #[error("line {line}: {message}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What was wrong.
        message: String,
    },
    /// Two keys under one id.
    #[error("the key id {0} stands for two different keys")]
    TwoKeys(KeyId),
    /// More of a kind than the bound.
    #[error("more than {limit} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
}

#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(default)]
    keys: Vec<Key>,
    #[serde(default)]
    revoked_keys: Vec<KeyId>,
    #[serde(default)]
    denied_tokens: Vec<Denied>,
}

/// A key as in a JWK set (RFC 7517, RFC 8037), without the members that are the same in all.
#[derive(Serialize, Deserialize)]
struct Key {
    kid: KeyId,
    x: String,
}

#[derive(Serialize, Deserialize)]
struct Denied {
    jti: TokenId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exp: Option<UnixSeconds>,
}

impl AccessList {
    /// Reads the JSON document. Fields that a newer version writes are passed over.
    ///
    /// # Errors
    /// It is too large, malformed, or beyond a bound.
    pub fn parse(json: &[u8]) -> Result<Self, AccessListError> {
        if json.len() > MAX_ACCESS_LIST_BYTES {
            return Err(AccessListError::TooLarge(json.len()));
        }
        let malformed = |error: &dyn std::fmt::Display| AccessListError::Malformed(error.to_string());
        let document: Document = crate::json::from_slice(json).map_err(|error| malformed(&error))?;
        let mut list = Self::default();
        for Key { kid, x } in document.keys {
            list.add_key(PublicKey::decode(kid, &x).map_err(|error| malformed(&error))?)?;
        }
        for key in document.revoked_keys {
            list.revoke_key(key)?;
        }
        for Denied { jti, exp } in document.denied_tokens {
            list.deny_token(jti, exp)?;
        }
        Ok(list)
    }

    /// The JSON document.
    pub fn json(&self) -> Box<RawValue> {
        serde_json::value::to_raw_value(&self.document()).expect("plain data")
    }

    fn document(&self) -> Document {
        Document {
            keys: self.keys.values().map(|key| Key { kid: key.id().clone(), x: key.encoded() }).collect(),
            revoked_keys: self.revoked_keys.iter().cloned().collect(),
            denied_tokens: self.denied_tokens.iter().map(|(jti, exp)| Denied { jti: jti.clone(), exp: *exp }).collect(),
        }
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &PublicKey> {
        self.keys.values()
    }

    /// The keys that verify nothing any more.
    pub fn revoked_keys(&self) -> impl Iterator<Item = &KeyId> {
        self.revoked_keys.iter()
    }

    /// The tokens that are denied and have not ended by now.
    pub fn denied_tokens(&self, now: UnixSeconds) -> impl Iterator<Item = &TokenId> {
        let lives = move |exp: &Option<UnixSeconds>| exp.is_none_or(|exp| !has_ended(exp, now));
        self.denied_tokens.iter().filter(move |(_, exp)| lives(exp)).map(|(id, _)| id)
    }

    /// Adds a key.
    ///
    /// # Errors
    /// Its id is another key's, or there are too many.
    pub fn add_key(&mut self, key: PublicKey) -> Result<(), AccessListError> {
        if let Some(other) = self.keys.get(key.id()) {
            return if *other == key { Ok(()) } else { Err(AccessListError::TwoKeys(key.id().clone())) };
        }
        within(self.keys.len(), MAX_KEYS, "keys")?;
        self.keys.insert(key.id().clone(), key);
        Ok(())
    }

    /// Revokes a key: no token that it signed opens anything.
    ///
    /// # Errors
    /// There are too many.
    pub fn revoke_key(&mut self, key: KeyId) -> Result<(), AccessListError> {
        if !self.revoked_keys.contains(&key) {
            within(self.revoked_keys.len(), MAX_REVOKED_KEYS, "revoked keys")?;
            self.revoked_keys.insert(key);
        }
        Ok(())
    }

    /// Denies a token; with its `exp`, when that is known for sure. Of two the later counts, and "not known" most.
    ///
    /// # Errors
    /// There are too many.
    pub fn deny_token(&mut self, token: TokenId, exp: Option<UnixSeconds>) -> Result<(), AccessListError> {
        if let Some(known) = self.denied_tokens.get_mut(&token) {
            *known = known.zip(exp).map(|(known, exp)| known.max(exp));
            return Ok(());
        }
        within(self.denied_tokens.len(), MAX_DENIED_TOKENS, "denied tokens")?;
        self.denied_tokens.insert(token, exp);
        Ok(())
    }
}

fn within(length: usize, limit: usize, what: &'static str) -> Result<(), AccessListError> {
    if length < limit { Ok(()) } else { Err(AccessListError::TooMany { what, limit }) }
}

/// The lines of a text file that say something: their number from 1, and their words. `#` begins a comment.
fn lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let words = |line| str::split(line, '#').next().unwrap_or_default().split_whitespace().collect::<Vec<_>>();
    let numbered = text.lines().enumerate().map(move |(index, line)| (index + 1, words(line)));
    numbered.filter(|(_, words)| !words.is_empty())
}

#[cfg(test)]
mod tests;
