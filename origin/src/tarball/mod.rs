//! The deterministic tarball of a folder: format 1 of the protocol. Where a folder comes from only its source knows
//! ([`Contents`]).
//!
//! A walk decides what is in it and in which order, and cuts it into runs of entries. Each run is read and compressed by
//! itself into frames, which are objects ([`FrameSink`]); [`build`] hashes the tar and puts the frames in their order.
//! A [`ContentKey`] shows whether a build would make anything new at all.

mod assemble;
mod base;
mod build;
mod build_context;
mod codec;
mod contents;
mod cut;
mod digests;
mod entry;
mod error;
mod filters;
mod frame_sink;
mod header;
mod key;
mod listing;
mod memory_budget;
mod planner;
mod recipe;
mod run;
mod walk;
mod worker;

use crate::folder_path::FolderPath;

pub use assemble::Built;
pub use base::Base;
pub use build::build;
pub use build_context::BuildContext;
pub use contents::Contents;
pub use entry::{Entry, EntryKind};
pub use error::TarballError;
pub use filters::{FilterError, Filters};
pub use frame_sink::FrameSink;
pub use key::{ContentKey, KeyWriter};
pub use listing::{Listed, ListedKind, Listing, list};
pub use recipe::{Recipe, RecipeError};
pub use walk::Walk;
pub(crate) use walk::walk;

/// What of a revision goes into a tarball.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The folder.
    pub folder: FolderPath,
    /// Which of its files.
    pub filters: Filters,
    /// Whether the files of LFS stand in it, and not their pointers in the list of what is left out.
    pub lfs: bool,
    /// Whether the tarball is also coded as gzip, one member for each frame.
    pub gzip: bool,
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
