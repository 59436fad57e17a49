//! A file that fails whoever writes to it, for tests.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redb::backends::FileBackend;
use redb::{Builder, StorageBackend};

use super::DatabaseFile;

/// When a file fails: each counts down to 1, and 0 is never.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// The write that brings about a fault in the program.
    pub(crate) panics_at_write: Arc<AtomicUsize>,
    /// The write to the medium that fails, when all bytes have been given to the system: whoever reads them back may find
    /// them.
    pub(crate) fails_at_sync: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Faulty {
    file: FileBackend,
    faults: Faults,
}

impl DatabaseFile {
    /// Opens a file that fails; opened anew it is sound.
    pub(crate) fn faulty(path: &Path, faults: &Faults) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let backend = Faulty { file: FileBackend::new(file).unwrap(), faults: faults.clone() };
        Self::of(path, Builder::new().create_with_backend(backend).unwrap(), false)
    }
}

fn is_due(countdown: &AtomicUsize) -> bool {
    countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(1))) == Ok(1)
}

impl StorageBackend for Faulty {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        if is_due(&self.faults.fails_at_sync) {
            return Err(io::Error::other("the medium took nothing"));
        }
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        assert!(!is_due(&self.faults.panics_at_write), "a fault");
        self.file.write(offset, data)
    }
}
