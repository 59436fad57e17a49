//! The deterministic tarball of a folder at a commit: format 1 of the protocol.
//!
//! [`walk`](self) decides what is in it and in which order; fragments of it are decoded and compressed side by side;
//! [`build`] puts them together. [`content_key`] tells whether a build would give anything new at all.

mod admission;
mod attributes;
mod build;
mod cut;
mod digests;
mod earlier;
mod error;
mod filters;
mod folder;
mod fragment;
mod header;
mod key;
mod lfs_files;
mod links;
mod listing;
mod sink;
mod size;
mod walk;

use crate::folder_path::FolderPath;

pub use build::{Built, Means, build};
pub use earlier::{Earlier, FragmentIndex};
pub use error::TarballError;
pub use filters::{FilterError, Filters};
pub use key::{ContentKey, content_key};
pub use lfs_files::lfs_files;
pub use listing::{Listed, ListedKind, Listing, list};
pub use sink::BlobSink;

/// What of a commit goes into a tarball.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The folder.
    pub folder: FolderPath,
    /// Which of its files.
    pub filters: Filters,
    /// Whether the files of LFS stand in it, and not their pointers in the list of what is left out.
    pub lfs: bool,
}

/// What a tarball may not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest file, in bytes; one at a time may be in memory. Default 1 GiB.
    pub max_file_bytes: u64,
    /// The largest tarball, in bytes of tar. Default 4 GiB.
    pub max_tarball_bytes: u64,
    /// The most entries that the folder may hold, whether they are written or left out. Default 1,000,000.
    pub max_entries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_file_bytes: 1 << 30, max_tarball_bytes: 4 << 30, max_entries: 1_000_000 }
    }
}
