//! Deny files: one `token <token id> [<end>]`, `key <key id>` or `agent <name>` per line; `#` starts a comment. After the end (RFC
//! 3339, the `exp` of the token) the line has no effect.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use super::{AccessList, AccessListError, lines};
use crate::name::{NameError, NodeName};
use crate::token::{IdError, KeyId, TokenId, UnixSeconds, unix_seconds};

/// A line of a deny file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DenyLine {
    /// A denied token, with its `exp` if that is known for certain.
    Token(TokenId, Option<UnixSeconds>),
    /// A revoked key: all tokens it signed are rejected.
    Key(KeyId),
    /// A denied agent: it may read nothing, whatever its credential.
    Agent(NodeName),
}

impl DenyLine {
    fn read(words: &[&str]) -> Result<Self, String> {
        let wrong = |error: IdError| error.to_string();
        match *words {
            ["token", id] => Ok(Self::Token(id.parse().map_err(wrong)?, None)),
            ["token", id, end] => {
                let end = humantime::parse_rfc3339(end)
                    .map_err(|_| format!("`{end}` is not a time such as `2026-11-20T09:30:00Z`"))?;
                Ok(Self::Token(id.parse().map_err(wrong)?, Some(unix_seconds(end))))
            }
            ["key", id] => Ok(Self::Key(id.parse().map_err(wrong)?)),
            ["agent", name] => Ok(Self::Agent(name.parse().map_err(|error: NameError| error.to_string())?)),
            _ => Err("expected `token <token id> [<end>]`, `key <key id>` or `agent <name>`".to_owned()),
        }
    }
}

impl fmt::Display for DenyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Times beyond RFC 3339 are never reached.
        let end = |exp: &UnixSeconds| UNIX_EPOCH.checked_add(Duration::from_secs(*exp)).filter(|_| *exp < END_OF_TIME);
        match self {
            Self::Token(id, exp) => match exp.as_ref().and_then(end) {
                Some(end) => write!(f, "token {id} {}", humantime::format_rfc3339_seconds(end)),
                None => write!(f, "token {id}"),
            },
            Self::Key(id) => write!(f, "key {id}"),
            Self::Agent(name) => write!(f, "agent {name}"),
        }
    }
}

/// The first second of the year 10000.
const END_OF_TIME: UnixSeconds = 253_402_300_800;

impl AccessList {
    /// Adds the contents of a deny file.
    ///
    /// # Errors
    /// A line is malformed, or there are too many.
    pub fn add_deny_file(&mut self, text: &str) -> Result<(), AccessListError> {
        for (line, words) in lines(text) {
            match DenyLine::read(&words).map_err(|message| AccessListError::Line { line, message })? {
                DenyLine::Token(id, exp) => self.deny_token(id, exp)?,
                DenyLine::Key(id) => self.revoke_key(id)?,
                DenyLine::Agent(name) => self.deny_agent(name)?,
            }
        }
        Ok(())
    }
}
