//! A file that is read and never written: what is written to it stays in memory, and goes with it.
//!
//! redb writes to a file as soon as it opens it, and all the more when it has to repair it. Through this a database can be
//! looked at on a disk that cannot be written, or when nothing of it may change.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{Builder, Database, StorageBackend};

use super::DatabaseError;

const PAGE: u64 = 4096;

/// Opens a database of which nothing changes on the disk.
pub(super) fn open(path: &Path) -> Result<Database, DatabaseError> {
    let overlay = Overlay::new(File::open(path)?)?;
    if overlay.written().length == 0 {
        return Err(DatabaseError::Empty);
    }
    Ok(Builder::new().create_with_backend(overlay)?)
}

#[derive(Debug)]
struct Overlay {
    file: File,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    length: u64,
    /// The bytes of the file that count: those beyond were cut off.
    of_file: u64,
    pages: HashMap<u64, Vec<u8>>,
}

impl Overlay {
    fn new(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self { file, written: Mutex::new(Written { length, of_file: length, pages: HashMap::new() }) })
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A page as it is on the disk, with zeros beyond the end.
    fn on_disk(&self, page: u64, of_file: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; PAGE as usize];
        let begin = page * PAGE;
        let there = of_file.saturating_sub(begin).min(PAGE) as usize;
        self.file.read_exact_at(&mut bytes[..there], begin)?;
        Ok(bytes)
    }
}

/// The pages that a range touches, each with the part of it, and of how many bytes.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length as u64;
    (offset / PAGE..end.div_ceil(PAGE)).map(move |page| {
        let from = offset.max(page * PAGE);
        let to = end.min((page + 1) * PAGE);
        (page, (from - page * PAGE) as usize, (to - from) as usize)
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written().length)
    }

    fn read(&self, offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        let written = self.written();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > written.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (page, from, count) in parts(offset, out.len()) {
            let (part, rest) = out.split_at_mut(count);
            match written.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[from..from + count]),
                None => part.copy_from_slice(&self.on_disk(page, written.of_file)?[from..from + count]),
            }
            out = rest;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut written = self.written();
        written.pages.retain(|page, _| page * PAGE < length);
        if let Some(last) = written.pages.get_mut(&(length / PAGE)) {
            last[(length % PAGE) as usize..].fill(0);
        }
        written.of_file = written.of_file.min(length);
        written.length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, mut data: &[u8]) -> io::Result<()> {
        let mut written = self.written();
        written.length = written.length.max(offset + data.len() as u64);
        for (page, from, count) in parts(offset, data.len()) {
            let (part, rest) = data.split_at(count);
            if !written.pages.contains_key(&page) {
                let bytes = self.on_disk(page, written.of_file)?;
                written.pages.insert(page, bytes);
            }
            if let Some(bytes) = written.pages.get_mut(&page) {
                bytes[from..from + count].copy_from_slice(part);
            }
            data = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    #[derive(Debug, Clone)]
    enum Act {
        Write(u16, Vec<u8>),
        SetLength(u16),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0..15_000u16, proptest::collection::vec(any::<u8>(), 1..9000))
                .prop_map(|(at, bytes)| Act::Write(at, bytes)),
            (0..20_000u16).prop_map(Act::SetLength),
        ]
    }

    proptest! {
        #[test]
        fn it_is_what_a_file_would_be_and_the_file_stays_what_it_was(
            before in proptest::collection::vec(any::<u8>(), 0..20_000),
            acts in proptest::collection::vec(act(), 1..12),
        ) {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&before).unwrap();
            let overlay = Overlay::new(File::open(file.path()).unwrap()).unwrap();
            let mut model = before.clone();
            for act in acts {
                match act {
                    Act::Write(at, bytes) => {
                        let end = usize::from(at) + bytes.len();
                        model.resize(model.len().max(end), 0);
                        overlay.write(at.into(), &bytes).unwrap();
                        model[usize::from(at)..end].copy_from_slice(&bytes);
                    }
                    Act::SetLength(length) => {
                        overlay.set_len(length.into()).unwrap();
                        model.resize(length.into(), 0);
                    }
                }
                let mut seen = vec![1; model.len()];
                overlay.read(0, &mut seen).unwrap();
                prop_assert!(seen == model);
                prop_assert!(overlay.read(1, &mut seen).is_err() || seen.is_empty());
            }
            prop_assert!(std::fs::read(file.path()).unwrap() == before);
        }
    }
}
