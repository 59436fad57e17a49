//! The seam to the sources.

use super::{KeyWriter, TarballError, Walk};

/// What a tarball is made of, wherever it comes from: files and symlinks by their paths. Each thread of a build works with a
/// clone of its own.
pub trait Contents: Clone + Send {
    /// Where the bytes of a file are, and what is done to them. Small: there is one in memory for each file of the runs that
    /// are being built.
    type File: Send;

    /// Visits everything.
    ///
    /// # Errors
    /// Those of the walk, and those of the source.
    fn walk(&self, into: &mut Walk<'_, Self::File>) -> Result<(), TarballError>;

    /// Writes what decides the bytes of a file, and its mode. What is written of two files that differ is never the same,
    /// nor the beginning of one another.
    fn identify(file: &Self::File, executable: bool, key: &mut KeyWriter);

    /// Reads a file into `buffer`, which holds it and nothing else afterwards. `path` is for errors.
    ///
    /// # Errors
    /// Those of the source.
    fn read(&self, path: &[u8], file: &Self::File, buffer: &mut Vec<u8>) -> Result<(), TarballError>;
}
