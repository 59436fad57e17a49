//! The bounds of an archive.

/// The most entries of an archive, with the directories that its paths imply.
pub(super) const MAX_ENTRIES: usize = 100_000;

/// The most bytes of all paths and link targets of an archive: they are in memory while it is read and built.
pub(super) const MAX_ALL_PATH_BYTES: usize = 16 << 20;

/// The longest path (`PATH_MAX` without the NUL).
pub(super) const MAX_PATH_BYTES: usize = 4095;

/// The largest PAX or GNU record. It is read into memory.
pub(super) const MAX_RECORD_BYTES: u64 = 64 << 10;

/// The largest window of zstd, as a power of two: 8 MiB, which each decoder must support (RFC 8878).
pub(super) const MAX_ZSTD_WINDOW_LOG: u32 = 23;

/// The configured bounds of an archive, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The archive itself.
    pub(crate) max_archive: u64,
    /// The configuration key of `max_archive`.
    pub(crate) max_archive_key: &'static str,
    /// The archive without its compression.
    pub(crate) max_unpacked: u64,
    /// One file.
    pub(crate) max_file: u64,
    /// All spools of the repository.
    pub(crate) max_spools: u64,
}
