//! Reads files of objects: from the page cache in place, else on a blocking thread.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use weir_protocol::manifest::MAX_OBJECT_BYTES;

use super::super::budget::{MemoryBudget, Reservation};

/// Reads a file. Blocks.
pub(super) fn whole(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = length(&file)?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).expect("an object fits in memory"));
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The size of a file, checked against the largest object.
fn length(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if length > MAX_OBJECT_BYTES as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is larger than an object"));
    }
    Ok(length)
}

/// Reads a file that is in the page cache and fits into the memory budget.
pub(super) fn cached(path: &Path, budget: &MemoryBudget) -> Option<(Vec<u8>, Reservation)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    // Fails also when the path is not in the dentry cache, or the kernel lacks RESOLVE_CACHED.
    let file: File = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?.into();
    let length = length(&file).ok()?;
    let reservation = budget.try_reserve(length)?;
    let mut bytes = vec![0; usize::try_from(length).expect("an object fits in memory")];
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut [IoSliceMut::new(&mut bytes[done..])];
        match preadv2(&file, rest, done as u64, ReadWriteFlags::NOWAIT) {
            // The file was truncated: verification fails.
            Ok(0) => bytes.truncate(done),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some((bytes, reservation))
}
