//! The names of records.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use weir_protocol::name::RepositoryName;

/// What there are records of.
pub(super) const KINDS: [&str; 3] = ["cluster", "nodes", "repositories"];

/// The name of a record: one of `repositories`, `nodes` and `cluster`, a slash, and a name of the alphabet of
/// [`RepositoryName`], which is safe as a part of a file path, a URL and a key in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RecordKey(Arc<str>);

/// The text names no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no record: expected `repositories/<name>`, `nodes/<name>` or `cluster/<name>`")]
pub(crate) struct InvalidKey(String);

impl RecordKey {
    /// The record of a repository.
    pub(crate) fn repository(name: &RepositoryName) -> Self {
        Self(format!("repositories/{name}").into())
    }

    /// As text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the slash.
    pub(super) fn kind(&self) -> &str {
        self.0.split_once('/').map_or("", |(kind, _)| kind)
    }

    /// The part behind the slash.
    pub(crate) fn name(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, name)| name)
    }
}

impl FromStr for RecordKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        match text.split_once('/') {
            Some((kind, name)) if KINDS.contains(&kind) && name.parse::<RepositoryName>().is_ok() => {
                Ok(Self(text.into()))
            }
            _ => Err(InvalidKey(text.chars().take(250).collect())),
        }
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
