//! Archives of upstreams, read within bounds. Nothing in them is trusted.
//!
//! [`SpoolStore::add`] reads an archive once: `reader` decompresses it, `members` parses the tar, `unpack` writes the
//! contents of files into a spool and everything else into an `index`. Builds read the spool like a tree of Git
//! (`contents`).

mod bounds;
mod contents;
mod error;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod headers;
mod index;
mod layout;
mod members;
mod paths;
mod reader;
mod store;
#[cfg(test)]
mod tests;
mod unpack;
mod whole;

pub(crate) use bounds::Bounds;
pub(crate) use contents::ArchiveTree;
pub(crate) use error::ArchiveError;
#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_archive;
pub(crate) use index::SpooledFile;
pub(crate) use layout::{FilePath, Layout};
pub(crate) use store::{Spool, SpoolStore};
pub(crate) use whole::{Original, WholeFile};
