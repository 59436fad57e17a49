//! Git LFS: files outside of the repository, which stores pointers to them.
//!
//! For a service with `lfs = true` the objects are located with the upstream's batch API ([`batch`]), verified against
//! their pointers, and stored next to the mirror ([`LfsObjects`]) before a build. A build reads only the disk.

pub mod batch;
mod objects;
mod pointer;

pub use objects::{LfsObjects, LfsUsage, LfsWriteError, LfsWriter};
pub use pointer::{LfsFile, LfsOid, MAX_POINTER_BYTES, Pointer, looks_like_pointer};
