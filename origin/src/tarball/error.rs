//! Why there is no tarball.

/// Why a tarball was not made. Paths are percent-encoded where they are not text.
#[derive(Debug, thiserror::Error)]
pub enum TarballError {
    /// The commit has no such folder.
    #[error("the commit has no folder `{0}`")]
    FolderMissing(String),
    /// There is something of that name, but it is a file, a symlink or a submodule.
    #[error("`{0}` is not a folder but a {1}")]
    NotAFolder(String, &'static str),
    /// Nothing is left of the folder.
    #[error(
        "nothing is left to publish: the folder is empty, or filters, `export-ignore` and the rules on unsafe entries leave everything out"
    )]
    Empty,
    /// One file is too large.
    #[error("`{path}` has {size} bytes, more than the limit of {limit} for a file")]
    FileTooLarge {
        /// Path below the folder.
        path: String,
        /// Its bytes.
        size: u64,
        /// [`super::Limits::max_file_bytes`].
        limit: u64,
    },
    /// All files together are too large.
    #[error("the tarball would have more than {limit} bytes")]
    TooLarge {
        /// [`super::Limits::max_tarball_bytes`].
        limit: u64,
    },
    /// The folder holds too much.
    #[error("the folder has more than {limit} entries")]
    TooManyEntries {
        /// [`super::Limits::max_entries`].
        limit: usize,
    },
    /// The list of what is left out would not fit into a descriptor.
    #[error(
        "more entries are left out (symlinks, submodules, LFS pointers, unsafe names) than a descriptor can list: exclude them by pattern"
    )]
    TooManyOmissions,
    /// The mirror lacks an object or holds a broken one.
    #[error("object {id} cannot be read from the mirror: {cause}")]
    Object {
        /// The object's id.
        id: String,
        /// What is wrong.
        cause: String,
    },
    /// The mirror holds the object as the upstream made it, and it makes no sense.
    #[error("object {id} makes no sense: {cause}")]
    Malformed {
        /// The object's id.
        id: String,
        /// What is wrong.
        cause: String,
    },
    /// An LFS object is not here, or not what it should be.
    #[error("the LFS object of `{path}` cannot be read: {cause}")]
    Lfs {
        /// Path below the folder.
        path: String,
        /// What is wrong.
        cause: String,
    },
    /// A frame could not be stored.
    #[error("a frame of the tarball cannot be stored: {0}")]
    Write(#[source] std::io::Error),
    /// Somebody asked to stop.
    #[error("making the tarball was interrupted")]
    Interrupted,
}

impl TarballError {
    pub(crate) fn object(id: impl std::fmt::Display, cause: impl std::fmt::Display) -> Self {
        Self::Object { id: id.to_string(), cause: cause.to_string() }
    }

    pub(crate) fn malformed(id: impl std::fmt::Display, cause: impl std::fmt::Display) -> Self {
        Self::Malformed { id: id.to_string(), cause: cause.to_string() }
    }
}
