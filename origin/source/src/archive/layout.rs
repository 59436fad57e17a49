//! Which files of an archive are published, and under which paths.

use weir_protocol::entry_path::is_safe_component;

/// How an archive becomes a folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// A chart: all members are in one top folder, which is not part of their paths.
    StripTop,
    /// The paths of the members.
    AsIs,
    /// Those of a layer of a container image, in which some names delete files of other layers.
    OfImage,
    /// Not an archive: its bytes are the only file, with this name.
    OneFile(Component),
}

/// A safe name of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Component(Box<str>);

impl Component {
    /// `None`: a directory cannot have a file of this name.
    pub(crate) fn new(name: &str) -> Option<Self> {
        is_safe_component(name.as_bytes()).then(|| Self(name.into()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}
