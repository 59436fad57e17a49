//! The interface to the sources.

use super::{KeyWriter, TarballError, Walk};

/// The files and symlinks of a tarball, from any source. Each thread of a build has its own clone.
pub trait Contents: Clone + Send {
    /// Locates the bytes of a file, and the filters to apply. Keep it small: all files of the runs in progress are in
    /// memory.
    type File: Send;

    /// Visits all entries.
    ///
    /// # Errors
    /// Those of the walk and of the source.
    fn walk(&self, into: &mut Walk<'_, Self::File>) -> Result<(), TarballError>;

    /// Writes everything that determines a file's bytes and mode. The output for two different files must differ, and
    /// neither may be a prefix of the other.
    fn identify(file: &Self::File, executable: bool, key: &mut KeyWriter);

    /// Reads a file into `buffer` and replaces its contents. `path` is for errors.
    ///
    /// # Errors
    /// Those of the source.
    fn read(&self, path: &[u8], file: &Self::File, buffer: &mut Vec<u8>) -> Result<(), TarballError>;
}
