//! A folder of a commit as tarball contents: trees, blobs, `.gitattributes` and LFS files.

mod attributes;
mod contents;
mod folder;
mod key;
mod lfs_files;
mod links;
mod walk;

pub use contents::{GitFile, GitTree};
pub use key::content_key;
pub use lfs_files::lfs_files;
