//! A folder of a commit as the contents of a tarball: trees and blobs, what `.gitattributes` say of them, and the files that
//! LFS pointers stand for.

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
