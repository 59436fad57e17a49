//! Errors of building a tarball.

/// Why a tarball cannot be built. Paths are percent-encoded where they are not UTF-8.
#[derive(Debug, thiserror::Error)]
pub enum TarballError {
    /// The commit has no such folder.
    #[error("the revision has no folder `{0}`")]
    FolderMissing(String),
    /// The path is a file, a symlink or a submodule.
    #[error("`{0}` is not a folder but a {1}")]
    NotAFolder(String, &'static str),
    /// The selection leaves nothing to publish.
    #[error(
        "nothing is left to publish: the folder is empty, or filters, `export-ignore` and the rules on unsafe entries leave everything out"
    )]
    Empty,
    /// A file exceeds its limit.
    #[error("`{path}` has {size} bytes, more than the limit of {limit} for a file")]
    FileTooLarge {
        /// Relative to the folder.
        path: String,
        /// In bytes.
        size: u64,
        /// See [`super::Limits::max_file_bytes`].
        limit: u64,
    },
    /// The attribute files of a directory exceed their limit.
    #[error(
        "`{path}` has {size} bytes: the attribute files of a directory and of those above it may have {limit} together; shorten its rules"
    )]
    AttributesTooLarge {
        /// Relative to the repository.
        path: String,
        /// In bytes.
        size: u64,
        /// In bytes, of all files that apply in a directory.
        limit: u64,
    },
    /// Matching the paths takes too long.
    #[error(
        "to match the paths with `include`, `exclude` and the `.gitattributes` takes more than {limit} steps: write fewer and shorter patterns, or publish a smaller folder"
    )]
    PatternsTooSlow {
        /// See [`super::Limits::max_match_steps`].
        limit: u64,
    },
    /// The tarball exceeds its limit.
    #[error("the tarball would have more than {limit} bytes")]
    TooLarge {
        /// See [`super::Limits::max_tarball_bytes`].
        limit: u64,
    },
    /// The folder exceeds its limit.
    #[error("the folder has more than {limit} entries")]
    TooManyEntries {
        /// See [`super::Limits::max_entries`].
        limit: usize,
    },
    /// A descriptor cannot list so many omissions.
    #[error(
        "more entries are left out (symlinks, submodules, LFS pointers, unsafe names) than a descriptor can list: exclude them by pattern"
    )]
    TooManyOmissions,
    /// The mirror lacks an object, or its copy is damaged.
    #[error("object {id} cannot be read from the mirror: {cause}")]
    Object {
        /// The object id.
        id: String,
        /// The error.
        cause: String,
    },
    /// The object is intact, but its content is invalid.
    #[error("object {id} is invalid: {cause}")]
    Malformed {
        /// The object id.
        id: String,
        /// The error.
        cause: String,
    },
    /// An LFS object is missing or wrong.
    #[error("the LFS object of `{path}` cannot be read: {cause}")]
    Lfs {
        /// Relative to the folder.
        path: String,
        /// The error.
        cause: String,
    },
    /// The unpacked archive cannot be read from the disk.
    #[error("`{path}` of the unpacked archive cannot be read: {cause}")]
    Spool {
        /// Relative to the folder.
        path: String,
        /// The error.
        cause: String,
    },
    /// The source of a part failed.
    #[error("{error}")]
    Part {
        /// The part's position among the paths of all parts, in the order of [`super::ComposedTree`].
        part: usize,
        /// The error.
        error: Box<TarballError>,
    },
    /// The sink failed.
    #[error("a frame of the tarball cannot be stored: {0}")]
    Write(#[source] std::io::Error),
    /// The interrupt flag was set.
    #[error("the build of the tarball was interrupted")]
    Interrupted,
}

impl TarballError {
    /// An object cannot be read, for now.
    pub fn object(id: impl std::fmt::Display, cause: impl std::fmt::Display) -> Self {
        Self::Object { id: id.to_string(), cause: cause.to_string() }
    }

    /// The error as one of a part, if it is of the part's source and not of the tarball.
    pub fn of_part(self, part: usize) -> Self {
        match self {
            Self::FolderMissing(_)
            | Self::NotAFolder(..)
            | Self::Empty
            | Self::AttributesTooLarge { .. }
            | Self::Object { .. }
            | Self::Malformed { .. }
            | Self::Lfs { .. }
            | Self::Spool { .. } => Self::Part { part, error: Box::new(self) },
            other => other,
        }
    }

    /// An object was read, and is wrong.
    pub fn malformed(id: impl std::fmt::Display, cause: impl std::fmt::Display) -> Self {
        Self::Malformed { id: id.to_string(), cause: cause.to_string() }
    }
}
