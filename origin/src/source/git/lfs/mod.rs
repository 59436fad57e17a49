//! Git LFS: files that stand outside of the repository, in whose place a pointer stands.
//!
//! A service that asks for it (`lfs = true`) gets the files. They are asked of the upstream ([`batch`]), verified against
//! their pointers, and kept beside the mirror ([`LfsObjects`]) before anything is built: a build reads the disk only.

pub mod batch;
mod objects;
mod pointer;

pub use objects::{LfsObjects, LfsUsage, LfsWriteError, LfsWriter};
pub use pointer::{LfsFile, LfsOid, MAX_POINTER_BYTES, Pointer, looks_like_pointer};
