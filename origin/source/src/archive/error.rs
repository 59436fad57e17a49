//! Why an archive cannot be used. Each text follows the name of the archive: "chart `shop` 1.0.0 …".

use std::io;

use weir_protocol::entry_path::percent_encode;

use super::bounds::{MAX_ALL_PATH_BYTES, MAX_ENTRIES, MAX_RECORD_BYTES};

/// The longest path in a text, in bytes, and the longest reason of a decoder, in characters: the archive chooses them.
const MAX_SHOWN: usize = 200;

/// Instead of the words of zstd.
const LARGE_WINDOW: &str = "zstd needs more than 8 MiB for it: compress it without `--long`";

/// Why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArchiveError {
    #[error("has more than `[upstreams] {key}` = {limit} bytes: raise it, or publish a smaller archive")]
    TooLarge { key: &'static str, limit: u64 },
    #[error("unpacks to more than `[upstreams] max_unpacked` = {0} bytes: raise it, or publish a smaller archive")]
    UnpacksTooLarge(u64),
    #[error("has the file `{path}` of {size} bytes, more than `[limits] max_file` = {limit}")]
    FileTooLarge { path: String, size: u64, limit: u64 },
    #[error("has more than {MAX_ENTRIES} files and directories")]
    TooManyEntries,
    #[error("has more than {MAX_ALL_PATH_BYTES} bytes of paths")]
    PathsTooLong,
    #[error("has a PAX or GNU record of more than {MAX_RECORD_BYTES} bytes")]
    RecordTooLarge,
    #[error("has the member `{path}`, which {fault}")]
    Member { path: String, fault: String },
    #[error("has `{0}` outside of its folder: package it with `helm package`")]
    OutsideFolder(String),
    #[error("has no files")]
    Empty,
    #[error("is not a tar archive, plain or with gzip or zstd{found}{hint}")]
    NotTar { found: &'static str, hint: &'static str },
    #[error("cannot be unpacked: {0}")]
    Unreadable(String),
    /// The bounds of the repository, not of the archive.
    #[error(
        "does not fit on the disk: the archives of the repository have more than `[upstreams] max_mirror` = {0} bytes"
    )]
    SpoolsTooLarge(u64),
    #[error("cannot be unpacked: the disk of `data_dir` reports: {0}")]
    Disk(io::Error),
    #[error("was not unpacked: the poll was interrupted")]
    Interrupted,
}

impl ArchiveError {
    pub(super) fn member(path: &[u8], fault: impl Into<String>) -> Self {
        Self::Member { path: shown(path), fault: fault.into() }
    }

    /// Whether the archive itself is the cause, so that it has the same error each time.
    pub(crate) fn is_in_archive(&self) -> bool {
        !matches!(self, Self::SpoolsTooLarge(_) | Self::Disk(_) | Self::Interrupted)
    }
}

/// Readers pass on an `ArchiveError` inside of the error of the system; other errors are those of decoders.
impl From<io::Error> for ArchiveError {
    fn from(error: io::Error) -> Self {
        let reason = |error: io::Error| match error.to_string() {
            text if text.contains("requires too much memory") => LARGE_WINDOW.to_owned(),
            text => weir_upstream::shown(&text, MAX_SHOWN),
        };
        error.downcast().unwrap_or_else(|error| Self::Unreadable(reason(error)))
    }
}

impl From<ArchiveError> for io::Error {
    fn from(error: ArchiveError) -> Self {
        Self::other(error)
    }
}

/// A path as texts have it.
pub(super) fn shown(path: &[u8]) -> String {
    let start = percent_encode(&path[..path.len().min(MAX_SHOWN)]);
    if path.len() > MAX_SHOWN { format!("{start}…") } else { start }
}
