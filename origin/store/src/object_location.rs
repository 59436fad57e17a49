//! The full name of an object: repository, area and digest.

use std::fmt;

use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;

/// Which nodes may read an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Area {
    /// Edges and origins: frames, manifests, deltas.
    Public,
    /// Only origins: state pages, history, recipes, bundles.
    Private,
}

impl Area {
    /// The name of the area's folder.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectLocation {
    pub repository: RepositoryName,
    pub area: Area,
    pub digest: ObjectDigest,
}

impl fmt::Display for ObjectLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.repository, self.area.as_str(), self.digest)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredObject {
    pub digest: ObjectDigest,
    /// Bytes.
    pub size: u64,
}

impl StoredObject {
    /// Parses the name of a file or key. `None`: it is no object.
    pub(crate) fn named(name: &str, size: u64) -> Option<Self> {
        Some(Self { digest: format!("b3-{name}").parse().ok()?, size })
    }
}
