//! What names an object: its repository, its area and its digest.

use std::fmt;

use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;

/// Who may read an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Area {
    /// Edges: frames, manifests, deltas.
    Public,
    /// Origins alone: state pages, history, recipes, bundles.
    Private,
}

impl Area {
    /// Its folder below that of the repository.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
        }
    }
}

/// Which object of which repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ObjectLocation {
    pub(crate) repository: RepositoryName,
    pub(crate) area: Area,
    pub(crate) digest: ObjectDigest,
}

impl fmt::Display for ObjectLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.repository, self.area.as_str(), self.digest)
    }
}

/// An object in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredObject {
    pub(crate) digest: ObjectDigest,
    /// Bytes.
    pub(crate) size: u64,
}

impl StoredObject {
    /// What a file or a key of this name is; nothing when it is no object.
    pub(super) fn named(name: &str, size: u64) -> Option<Self> {
        Some(Self { digest: format!("b3-{name}").parse().ok()?, size })
    }
}
