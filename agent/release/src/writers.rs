//! Several threads write the files of a release: to create, compare and link a small file costs processor time and no disk.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::confined_dir::{ConfinedDir, start_writing};
use crate::modes::Modes;
use crate::tar_reader::{TarError, TarFile};
use crate::unchanged::{Before, ReleaseBefore};

/// More would only wait for the same file system.
const MAX_WRITERS: usize = 4;

/// The files that a writer takes at a time: mostly of one directory, which is opened once.
const BATCH: usize = 16;

/// The bytes that are copied at a time.
const PART: usize = 64 << 10;

/// Where files come from and go to.
pub(crate) struct Unpacking<'a> {
    pub tarball: &'a File,
    pub into: &'a Path,
    pub modes: Modes,
    /// Files that are unchanged may be taken of it.
    pub before: Option<Before<'a>>,
}

/// Gives files to the writers.
pub(crate) struct Writers {
    queue: SyncSender<Vec<TarFile>>,
    batch: Vec<TarFile>,
    has_failed: Arc<AtomicBool>,
}

impl Writers {
    /// The parent directory of the file exists. False: a writer has failed, and nothing more is needed.
    pub(crate) fn write(&mut self, file: TarFile) -> bool {
        self.batch.push(file);
        self.batch.len() < BATCH || self.send()
    }

    fn send(&mut self) -> bool {
        self.queue.send(std::mem::take(&mut self.batch)).is_ok() && !self.has_failed.load(Ordering::Relaxed)
    }
}

impl Unpacking<'_> {
    /// Runs `read`, which gives files to the writers, and waits until all are written.
    ///
    /// # Errors
    /// That of `read`, else the first one of a writer.
    pub(crate) fn with_writers<T>(
        &self,
        read: impl FnOnce(&mut Writers) -> Result<T, TarError>,
    ) -> Result<T, TarError> {
        let count = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_WRITERS);
        let (queue, files) = sync_channel(count);
        let files = Arc::new(Mutex::new(files));
        let has_failed = Arc::new(AtomicBool::new(false));
        thread::scope(|scope| {
            let writers: Vec<_> = (0..count)
                .map_while(|_| {
                    let (files, has_failed) = (files.clone(), &has_failed);
                    let write = move || {
                        let written = self.write_files(&files);
                        has_failed.fetch_or(written.is_err(), Ordering::Relaxed);
                        written
                    };
                    // Where no more threads may be started, fewer do it.
                    thread::Builder::new().spawn_scoped(scope, write).ok()
                })
                .collect();
            if writers.is_empty() {
                return Err(TarError::Read(io::Error::other("no thread can be started to unpack it")));
            }
            // Once all writers have ended, nothing is sent in vain.
            drop(files);
            let mut to = Writers { queue, batch: Vec::new(), has_failed: has_failed.clone() };
            let read = read(&mut to).inspect(|_| _ = to.send());
            drop(to);
            let written = writers
                .into_iter()
                .try_for_each(|writer| writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            read.and_then(|read| written.map(|()| read))
        })
    }

    /// A writer. The others go on when it fails, until nothing more is sent.
    fn write_files(&self, files: &Mutex<Receiver<Vec<TarFile>>>) -> Result<(), TarError> {
        let Self { tarball, into, modes, before } = self;
        let mut dir =
            ConfinedDir::open_to_write(into, *modes).map_err(|error| TarError::cannot_write(into, b"", error))?;
        let mut before = before.as_ref().and_then(|before| ReleaseBefore::open(tarball, before, into, *modes));
        let mut part = vec![0; PART];
        let next = || files.lock().unwrap_or_else(PoisonError::into_inner).recv();
        while let Ok(batch) = next() {
            for file in batch {
                let taken = before.as_mut().map_or(Ok(false), |before| before.take(&mut dir, &file));
                let written = taken.and_then(|is_taken| match is_taken {
                    true => Ok(()),
                    false => write_file(&mut dir, &file, tarball, &mut part),
                });
                written.map_err(|error| TarError::of_entry(into, &file.path, error))?;
            }
        }
        Ok(())
    }
}

fn write_file(dir: &mut ConfinedDir, of: &TarFile, tarball: &File, part: &mut [u8]) -> io::Result<()> {
    let file = dir.create_file(&of.path, of.executable)?;
    let mut at = 0;
    while at < of.size {
        let part = &mut part[..usize::try_from(of.size - at).unwrap_or(PART).min(PART)];
        tarball.read_exact_at(part, of.position + at)?;
        file.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    start_writing(&file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unpack::{Limits, unpack};
    use std::io::Write as _;
    use weir_protocol::tar_writer::{END, HeaderKind, pad, write_header};

    fn unpacked(paths: impl Iterator<Item = String>) -> Result<usize, String> {
        let mut bytes = Vec::new();
        for path in paths {
            write_header(&mut bytes, path.as_bytes(), HeaderKind::File { executable: false, size: path.len() as u64 });
            bytes.extend_from_slice(path.as_bytes());
            pad(&mut bytes, path.len() as u64);
        }
        bytes.extend_from_slice(&END);
        let (mut tarball, dir) = (tempfile::tempfile().unwrap(), tempfile::tempdir().unwrap());
        tarball.write_all(&bytes).unwrap();
        let unpacking = Unpacking { tarball: &tarball, into: dir.path(), modes: Modes::default(), before: None };
        let limits = Limits { max_files: 100_000, max_bytes: 1 << 30 };
        unpack(&unpacking, limits).map_err(|error| error.to_string())?;
        assert_eq!(crate::compare::compare(&bytes[..], dir.path(), Modes::default()).unwrap(), None);
        Ok(std::fs::read_dir(dir.path()).unwrap().count())
    }

    #[test]
    fn more_files_than_the_writers_take_at_a_time_are_all_written() {
        let paths = (0..10 * MAX_WRITERS * BATCH + 1).map(|number| format!("{:02}/{number:04}", number / 50));
        assert_eq!(unpacked(paths), Ok(13));
    }

    #[test]
    fn after_a_file_that_cannot_be_written_no_more_are_taken() {
        let (tarball, dir) = (tempfile::tempfile().unwrap(), tempfile::tempdir().unwrap());
        let unpacking = Unpacking { tarball: &tarball, into: dir.path(), modes: Modes::default(), before: None };
        let mut taken = 0;
        // Only the writer of the second `0` fails. The others could write on.
        let written = unpacking.with_writers(|writers| {
            let path = |number: usize| number.saturating_sub(1).to_string().into_bytes();
            while writers.write(TarFile { path: path(taken), executable: false, position: 0, size: 0 })
                && taken < 50_000
            {
                taken += 1;
            }
            Ok(())
        });
        assert!(taken < 50_000);
        let error = written.unwrap_err().to_string();
        assert!(error.ends_with("is refused: the name exists already"), "{error}");
    }

    #[test]
    fn a_file_below_another_one_is_refused() {
        // Whichever of both is made first.
        let below = unpacked(["a", "a/b"].map(String::from).into_iter()).unwrap_err();
        assert!(below.contains("the name exists already") || below.contains("in place of a directory"), "{below}");
    }
}
