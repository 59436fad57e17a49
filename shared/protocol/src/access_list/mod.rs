//! Access lists: the keys that verify tokens, what is revoked, and which agents follow what. As JSON on the event
//! stream; keys and denials also as text files.
//!
//! A denial always wins: where lists are merged, anything revoked in one of them is revoked.

mod deny_file;
mod entry;
mod fleet;
mod key_file;
mod shard;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use self::fleet::{EntriesDocument, Representation};
use crate::assignment::{Agent, Assignment};
use crate::digest::ObjectDigest;
use crate::issuer::Issuer;
use crate::name::NodeName;
use crate::token::{KeyId, PublicKey, TokenId, UnixSeconds, has_expired};

pub use deny_file::DenyLine;
pub use entry::{Entry, MAX_KIND_BYTES, UniqueKey};
pub use fleet::{Entries, Fleet};
pub use key_file::key_line;
pub use shard::{MAX_SHARD_BYTES, SHARDS, Shard, shard_of};
pub use table::Table;

/// The largest list in bytes of JSON.
pub const MAX_ACCESS_LIST_BYTES: usize = 12 << 20;

/// Room in a list for keys and denials, which have bounds of their own, and for the names of fields.
const MAX_KEYS_AND_DENIALS_BYTES: usize = 2 << 20;

/// The most keys of a list.
pub const MAX_KEYS: usize = 100;

/// The most revoked keys of a list.
pub const MAX_REVOKED_KEYS: usize = 1_000;

/// The most denied tokens of a list. To deny more, revoke their key.
pub const MAX_DENIED_TOKENS: usize = 10_000;

/// The most denied agents of a list.
pub const MAX_DENIED_AGENTS: usize = 1_000;

/// Keys, revoked keys, denied tokens and agents, and what operators say of agents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessList {
    keys: BTreeMap<KeyId, PublicKey>,
    revoked_keys: BTreeSet<KeyId>,
    /// With the `exp` of the token, after which it need not be remembered.
    denied_tokens: BTreeMap<TokenId, Option<UnixSeconds>>,
    denied_agents: BTreeSet<NodeName>,
    fleet: Fleet,
}

/// Why an access list cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessListError {
    /// More than [`MAX_ACCESS_LIST_BYTES`], or a shard of more than [`MAX_SHARD_BYTES`].
    #[error("{0} bytes are more than an access list or a shard of it may have")]
    TooLarge(usize),
    /// The bytes of a shard are others than its digest says.
    #[error("the shard {0} has other bytes")]
    Corrupt(ObjectDigest),
    /// Not JSON, or a field is missing or wrong.
    #[error("the access list cannot be read: {0}")]
    Malformed(String),
    /// A line of a file is malformed.
    #[error("line {line}: {message}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// Two keys have the same id.
    #[error("the key id {0} stands for two different keys")]
    TwoKeys(KeyId),
    /// Two entries of a kind have the same name.
    #[error("two of the {kind} have the name `{name}`")]
    TwoEntries {
        /// The kind.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A bound is exceeded.
    #[error("more than {limit} {what}")]
    TooMany {
        /// What exceeds it.
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    denied_agents: Vec<NodeName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agents: Option<EntriesDocument<Agent>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    assignments: Option<EntriesDocument<Assignment>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issuers: Option<EntriesDocument<Issuer>>,
}

/// A key as in a JWK set (RFC 7517, RFC 8037), without the members that are always the same.
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
    /// Parses the JSON document. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is too large, malformed, or exceeds a bound.
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
        for agent in document.denied_agents {
            list.deny_agent(agent)?;
        }
        list.fleet = Fleet {
            agents: Entries::read(document.agents)?,
            assignments: Entries::read(document.assignments)?,
            issuers: Entries::read(document.issuers)?,
        };
        Ok(list)
    }

    /// Encodes the JSON document with all documents.
    pub fn json(&self) -> Box<RawValue> {
        self.encode(Representation::Whole)
    }

    /// The same for readers that know no shards: within the bounds of a list, without the documents of the kinds that it
    /// names.
    pub fn whole_json(&self) -> (Box<RawValue>, Vec<&'static str>) {
        let mut list = self.clone();
        let left_out = list.fleet.fit(MAX_ACCESS_LIST_BYTES - MAX_KEYS_AND_DENIALS_BYTES);
        (list.json(), left_out)
    }

    /// Encodes the JSON document with the digests of shards in place of documents.
    pub fn sharded_json(&self) -> Box<RawValue> {
        self.encode(Representation::Shards)
    }

    /// The digests of shards that it names and does not have, each once.
    pub fn lacking(&self) -> BTreeSet<ObjectDigest> {
        let Fleet { agents, assignments, issuers } = &self.fleet;
        agents.lacking().chain(assignments.lacking()).chain(issuers.lacking()).collect()
    }

    /// Takes the shards that it lacks from another list that has them.
    pub fn fill_from(&mut self, known: &Self) {
        self.fleet.agents.fill_from(&known.fleet.agents);
        self.fleet.assignments.fill_from(&known.fleet.assignments);
        self.fleet.issuers.fill_from(&known.fleet.issuers);
    }

    /// Adds a shard that it lacks.
    ///
    /// # Errors
    /// The bytes are others, malformed or too many.
    pub fn add_shard(&mut self, digest: &ObjectDigest, json: &[u8]) -> Result<(), AccessListError> {
        if ObjectDigest::of(json) != *digest {
            return Err(AccessListError::Corrupt(*digest));
        }
        self.fleet.agents.add_shard(digest, json)?;
        self.fleet.assignments.add_shard(digest, json)?;
        self.fleet.issuers.add_shard(digest, json)
    }

    fn encode(&self, representation: Representation) -> Box<RawValue> {
        serde_json::value::to_raw_value(&self.document(representation)).expect("plain data")
    }

    fn document(&self, representation: Representation) -> Document {
        Document {
            keys: self.keys.values().map(|key| Key { kid: key.id().clone(), x: key.encoded() }).collect(),
            revoked_keys: self.revoked_keys.iter().cloned().collect(),
            denied_tokens: self.denied_tokens.iter().map(|(jti, exp)| Denied { jti: jti.clone(), exp: *exp }).collect(),
            denied_agents: self.denied_agents.iter().cloned().collect(),
            agents: self.fleet.agents.document(representation),
            assignments: self.fleet.assignments.document(representation),
            issuers: self.fleet.issuers.document(representation),
        }
    }

    /// The keys that verify tokens.
    pub fn keys(&self) -> impl Iterator<Item = &PublicKey> {
        self.keys.values()
    }

    /// The revoked keys.
    pub fn revoked_keys(&self) -> impl Iterator<Item = &KeyId> {
        self.revoked_keys.iter()
    }

    /// The denied tokens that have not expired.
    pub fn denied_tokens(&self, now: UnixSeconds) -> impl Iterator<Item = &TokenId> {
        let lives = move |exp: &Option<UnixSeconds>| exp.is_none_or(|exp| !has_expired(exp, now));
        self.denied_tokens.iter().filter(move |(_, exp)| lives(exp)).map(|(id, _)| id)
    }

    /// The agents that may read nothing, whatever their credential.
    pub fn denied_agents(&self) -> impl Iterator<Item = &NodeName> {
        self.denied_agents.iter()
    }

    /// Agents, assignments and issuers.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Replaces agents, assignments and issuers.
    pub fn set_fleet(&mut self, fleet: Fleet) {
        self.fleet = fleet;
    }

    /// Takes agents, assignments and issuers back from an earlier list of the same origin where this one is behind.
    pub fn keep_newer(&mut self, earlier: &Self) {
        self.fleet.keep_newer(&earlier.fleet);
    }

    /// What stays when the origin that sent the list is gone: its denials, and the agents and assignments that all
    /// origins share.
    #[must_use]
    pub fn denials(&self) -> Self {
        Self { keys: Default::default(), fleet: self.fleet.shared(), ..self.clone() }
    }

    /// The keys and denials of several lists, with the agents, assignments and issuers of all of them.
    ///
    /// # Errors
    /// There are too many keys, denials or entries of files, or two keys have one id.
    pub fn join<'a>(lists: impl Iterator<Item = &'a Self>, fleet: Fleet) -> Result<Self, AccessListError> {
        fleet.files_within_limits()?;
        let mut joined = Self { fleet, ..Self::default() };
        for list in lists {
            joined.merge(list)?;
        }
        Ok(joined)
    }

    /// Adds the keys and denials of another list.
    fn merge(&mut self, other: &Self) -> Result<(), AccessListError> {
        other.keys.values().try_for_each(|key| self.add_key(key.clone()))?;
        other.revoked_keys.iter().try_for_each(|key| self.revoke_key(key.clone()))?;
        other.denied_agents.iter().try_for_each(|agent| self.deny_agent(agent.clone()))?;
        other.denied_tokens.iter().try_for_each(|(token, exp)| self.deny_token(token.clone(), *exp))
    }

    /// Adds a key.
    ///
    /// # Errors
    /// Another key has its id, or there are too many.
    pub fn add_key(&mut self, key: PublicKey) -> Result<(), AccessListError> {
        if let Some(other) = self.keys.get(key.id()) {
            return if *other == key { Ok(()) } else { Err(AccessListError::TwoKeys(key.id().clone())) };
        }
        within(self.keys.len(), MAX_KEYS, "keys")?;
        self.keys.insert(key.id().clone(), key);
        Ok(())
    }

    /// Revokes a key: all tokens it signed are rejected.
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

    /// Denies an agent: it may read nothing, whatever its credential.
    ///
    /// # Errors
    /// There are too many.
    pub fn deny_agent(&mut self, agent: NodeName) -> Result<(), AccessListError> {
        if !self.denied_agents.contains(&agent) {
            within(self.denied_agents.len(), MAX_DENIED_AGENTS, "denied agents")?;
            self.denied_agents.insert(agent);
        }
        Ok(())
    }

    /// Denies a token; with its `exp` if that is known for certain. Of several the latest applies, and an unknown one
    /// is the latest of all.
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

/// The lines that are not empty, with numbers from 1, split into words. `#` starts a comment.
fn lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let words = |line| str::split(line, '#').next().unwrap_or_default().split_whitespace().collect::<Vec<_>>();
    let numbered = text.lines().enumerate().map(move |(index, line)| (index + 1, words(line)));
    numbered.filter(|(_, words)| !words.is_empty())
}

#[cfg(test)]
mod tests;
