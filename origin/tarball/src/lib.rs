//! Builds the deterministic tarball of a folder, in format 1 of the protocol. Begin at [`build`]. Sources provide the
//! [`Contents`].
//!
//! A walk selects and orders the entries, and splits them into runs. Each run is compressed on its own into frames,
//! which are objects ([`FrameSink`]); [`build`] hashes the tar and puts the frames in order. An unchanged
//! [`ContentKey`] makes a build unnecessary.

mod assemble;
mod base;
mod build;
mod build_context;
mod chunker;
mod codec;
mod composed;
pub mod delta;
mod digests;
mod entry;
mod error;
mod filters;
mod folder_path;
mod frame_sink;
mod glob;
mod key;
mod listing;
mod memory_budget;
mod planner;
mod recipe;
mod run;
mod walk;
mod whole;
mod worker;

pub use folder_path::{FolderPath, FolderPathError};

pub use assemble::Built;
pub use base::Base;
pub use build::build;
pub use build_context::BuildContext;
pub use composed::{ComposedTree, PartFile, position};
pub use entry::{Entry, EntryKind};
pub use error::TarballError;
pub use filters::{FilterError, Filters, Inclusion};
pub use frame_sink::FrameSink;
pub use glob::Matcher;
pub use key::{ContentKey, KeyWriter};
pub use listing::{ListedEntry, ListedKind, Listing, list};
pub use recipe::{Recipe, RecipeError};
pub use walk::walk;
pub use walk::{Contents, PIECE_BYTES, Walk};
pub use whole::{Whole, WholeBlob};

/// The part of a revision that goes into a tarball.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The folder.
    pub folder: FolderPath,
    /// The globs that select its files.
    pub filters: Filters,
    /// Whether LFS files are included. Otherwise they are listed as omitted.
    pub lfs: bool,
    /// Whether there is also a gzip representation, with one member for each frame.
    pub gzip: bool,
}

/// The limits of a tarball.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest file in bytes. Default 1 GiB.
    pub max_file_bytes: u64,
    /// The largest tarball in uncompressed bytes. Default 4 GiB.
    pub max_tarball_bytes: u64,
    /// The most entries in the folder, including those left out. Default 1,000,000.
    pub max_entries: usize,
    /// The most steps of matching paths with `include`, `exclude` and `.gitattributes`: positions in patterns that a byte of a
    /// path advances, and bytes of character classes. Default 2,000,000,000: half a minute of one processor.
    pub max_match_steps: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_file_bytes: 1 << 30,
            max_tarball_bytes: 4 << 30,
            max_entries: 1_000_000,
            max_match_steps: glob::MAX_MATCH_STEPS,
        }
    }
}
