//! Reads the whole file of an object: in place what the page cache has, on a thread that may block otherwise.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use weir_shared::manifest::MAX_OBJECT_BYTES;

use super::super::budget::{Budget, Charge};

/// An open file of an object.
pub(super) struct Opened {
    file: File,
    /// Its bytes: never more than an object has.
    length: u64,
}

/// What can be done without waiting for the disk.
pub(super) enum Cached {
    /// All of it was in memory.
    Read(Vec<u8>, Charge),
    /// It has to be read by [`Opened::read`].
    MustWait,
}

impl Opened {
    fn of(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        if length > MAX_OBJECT_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is larger than an object"));
        }
        Ok(Self { file, length })
    }

    /// Opens a file. Blocks.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::of(File::open(path)?)
    }

    /// The bytes that will be read.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// All of it. Blocks.
    pub(super) fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.length).expect("an object fits in memory"));
        self.file.by_ref().take(self.length).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Reads a file as far as that needs no disk and takes no more memory than there is.
///
/// # Errors
/// There is no such file, or it cannot be read.
pub(super) fn cached(path: &Path, budget: &Budget) -> io::Result<Cached> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file: OwnedFd = match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(file) => file,
        Err(error @ (Errno::NOENT | Errno::MFILE | Errno::NFILE)) => return Err(error.into()),
        // The names on the way are not in memory, or the system does not know how to tell.
        Err(_) => return Ok(Cached::MustWait),
    };
    let opened = Opened::of(file.into())?;
    let Some(charge) = budget.try_charge(opened.length) else { return Ok(Cached::MustWait) };
    let mut bytes = vec![0; usize::try_from(opened.length).expect("an object fits in memory")];
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut [IoSliceMut::new(&mut bytes[done..])];
        match preadv2(opened.file.as_fd(), rest, done as u64, ReadWriteFlags::NOWAIT) {
            // It has become shorter: its bytes are not what its name says, and whoever verifies them sees that.
            Ok(0) => bytes.truncate(done),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::OPNOTSUPP) => return Ok(Cached::MustWait),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Cached::Read(bytes, charge))
}
