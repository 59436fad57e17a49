//! Tells whether a file was written to since it was last looked at, without reading it.

use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;

/// What a file system says of one state of a file: which file it is, its length, and when it and its bytes last changed.
///
/// Whoever writes to the file, or puts another one in its place, changes it, unless that happens within the same tick of
/// the file system's clock (a few milliseconds). What a medium does to the bytes by itself does not show here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp(u64);

impl From<&Metadata> for FileStamp {
    fn from(file: &Metadata) -> Self {
        // A million blobs are remembered: eight bytes of each, instead of all of it.
        let mut hasher = DefaultHasher::new();
        (file.dev(), file.ino(), file.len()).hash(&mut hasher);
        (file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()).hash(&mut hasher);
        Self(hasher.finish())
    }
}
