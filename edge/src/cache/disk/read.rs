//! Reads the whole file of an object: in place what the page cache has, on a thread that may block otherwise.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use weir_protocol::manifest::MAX_OBJECT_BYTES;

use super::super::budget::{Budget, Charge};

/// All of a file. Blocks.
pub(super) fn whole(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = length(&file)?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).expect("an object fits in memory"));
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The bytes of a file: never more than an object has.
fn length(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if length > MAX_OBJECT_BYTES as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is larger than an object"));
    }
    Ok(length)
}

/// All of a file, when that needs no disk and takes no more memory than there is.
pub(super) fn cached(path: &Path, budget: &Budget) -> Option<(Vec<u8>, Charge)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    // An error also when the names on the way are not in memory, or the system does not know how to tell.
    let file: File = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?.into();
    let length = length(&file).ok()?;
    let charge = budget.try_charge(length)?;
    let mut bytes = vec![0; usize::try_from(length).expect("an object fits in memory")];
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut [IoSliceMut::new(&mut bytes[done..])];
        match preadv2(&file, rest, done as u64, ReadWriteFlags::NOWAIT) {
            // It has become shorter: its bytes are not what its name says, and whoever verifies them sees that.
            Ok(0) => bytes.truncate(done),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some((bytes, charge))
}
