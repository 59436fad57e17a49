//! The names of records.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use weir_protocol::name::{NodeName, RepositoryName};

/// The first parts of keys.
pub(crate) const KINDS: [&str; 4] = ["cluster", "names", "nodes", "repositories"];

/// The name of a record: `repositories`, `names`, `nodes` or `cluster`, a slash, and a name in the alphabet of
/// [`RepositoryName`], which is safe in file paths, URLs and bucket keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey(Arc<str>);

/// The text is no record key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a record key: expected `repositories/<name>`, `names/<name>`, `nodes/<name>` or `cluster/<name>`"
)]
pub struct InvalidKey(String);

impl RecordKey {
    /// The record of a repository.
    pub fn repository(name: &RepositoryName) -> Self {
        Self(format!("repositories/{name}").into())
    }

    /// The prefix of all records of names.
    pub const NAMES: &'static str = "names/";

    /// The names of services in a bucket.
    pub fn names(bucket: u8) -> Self {
        Self(format!("{}{bucket:02x}", Self::NAMES).into())
    }

    /// The record of a member of the cluster.
    pub fn node(name: &NodeName) -> Self {
        Self(format!("nodes/{name}").into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the slash.
    pub(crate) fn kind(&self) -> &str {
        self.0.split_once('/').map_or("", |(kind, _)| kind)
    }

    /// The part after the slash.
    pub fn name(&self) -> &str {
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
