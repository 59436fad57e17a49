//! Which files of an archive are published, and under which paths.

use weir_protocol::entry_path::is_safe_path;

use super::bounds::MAX_PATH_BYTES;

/// How an archive becomes a folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// A chart: all members are in one top folder, which is not part of their paths.
    StripTop,
    /// The paths of the members.
    AsIs,
    /// Those of a layer of a container image, in which some names delete files of other layers.
    OfImage,
    /// Not an archive: its bytes are the only file, with this path.
    OneFile(FilePath),
}

/// A safe path of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FilePath(Box<str>);

impl FilePath {
    /// `None`: a directory cannot have a file there.
    pub(crate) fn new(path: &str) -> Option<Self> {
        let is_path = path.len() <= MAX_PATH_BYTES && !path.ends_with('/') && is_safe_path(path.as_bytes());
        is_path.then(|| Self(path.into()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}
