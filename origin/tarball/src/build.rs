//! Builds a tarball: one thread walks, several read, compress and put frames, and the caller's thread hashes the tar.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::assemble::{Assembler, Built};
use super::build_context::BuildContext;
use super::chunker;
use super::frame_sink::FrameSink;
use super::memory_budget::MemoryBudget;
use super::planner::{Stop, plan};
use super::worker::Worker;
use super::{Contents, Selection, TarballError};

/// Builds the tarball of a selection and puts its frames into `sink`, in any order. The frames depend only on the
/// contents and the selection.
///
/// Memory: at most 4 MiB of tar for each of `threads + 2`, and one frame for each thread. A larger file is read in pieces, of
/// which there are 8 MiB, if its source does not have it whole in memory.
///
/// # Errors
/// See [`TarballError`]. Frames that are in the sink by then are unreferenced.
pub fn build(
    contents: &impl Contents,
    selection: &Selection,
    context: &BuildContext<'_>,
    sink: &dyn FrameSink,
) -> Result<Built, TarballError> {
    let threads = context.threads.max(1);
    let budget = MemoryBudget::new((threads as u64 + 2) * chunker::MAX_RUN_BYTES);
    let parts = MemoryBudget::new(2 * chunker::MAX_RUN_BYTES);
    let (jobs, next_job) = channel();
    let next_job = Mutex::new(next_job);
    let (done, finished) = channel();
    std::thread::scope(|scope| {
        let (budget, parts, next_job) = (&budget, &parts, &next_job);
        let close_on_panic = || CloseOnPanic([budget, parts]);
        let (walked, planned) = (contents.clone(), done.clone());
        let walker = scope.spawn(move || {
            let _guard = close_on_panic();
            plan(&walked, selection, context, (budget, jobs, planned))
        });
        for _ in 0..threads {
            let (contents, done) = (contents.clone(), done.clone());
            scope.spawn(move || {
                let _guard = close_on_panic();
                Worker::new(contents, selection, context, sink).work((budget, parts), next_job, &done);
            });
        }
        drop(done);
        let _guard = close_on_panic();
        let mut assembler = Assembler::new(context, budget, parts);
        let assembled = assembler.take_all(&finished);
        // After an error, no further run will be hashed.
        budget.close();
        parts.close();
        drop(finished);
        let walked = walker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // If the walk failed, the error of the runs is only a consequence.
        match (walked, assembled) {
            (Err(Stop::Failed(error)), _) | (_, Err(error)) => Err(error),
            (Err(Stop::AssemblerFailed), Ok(())) => Err(TarballError::Interrupted),
            (Ok(walked), Ok(())) if walked.entries == 0 => Err(TarballError::Empty),
            (Ok(walked), Ok(())) => Ok(assembler.into_built(walked)),
        }
    })
}

/// Ends the other threads if one panics, so that the build does not wait forever.
struct CloseOnPanic<'a>([&'a MemoryBudget; 2]);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().for_each(|budget| budget.close());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use bytes::Bytes;
    use weir_protocol::digest::ObjectDigest;

    use super::*;
    use crate::{Base, KeyWriter, Limits, PIECE_BYTES, Walk};

    /// Small files around a large one, which may not be read as a whole.
    #[derive(Clone)]
    struct Files {
        large: Arc<Vec<u8>>,
        /// In the last file.
        end: &'static [u8],
        is_whole_allowed: bool,
    }

    impl Contents for Files {
        /// Its size.
        type File = u64;

        fn walk(&self, into: &mut Walk<'_, u64>) -> Result<(), TarballError> {
            for (name, size) in [("a", 1), ("large", self.large.len()), ("z", self.end.len())] {
                into.count()?;
                into.visit(name.as_bytes(), false, |_| false)?;
                into.file(size as u64, size as u64, false)?;
            }
            Ok(())
        }

        fn identify(size: &u64, _: bool, key: &mut KeyWriter) {
            key.field(&size.to_le_bytes());
        }

        fn read(&self, path: &[u8], _: &u64, buffer: &mut Vec<u8>) -> Result<(), TarballError> {
            assert!(path != b"large" || self.is_whole_allowed, "it would be in memory as a whole");
            *buffer = match path {
                b"a" => b"a".to_vec(),
                b"large" => self.large.to_vec(),
                _ => self.end.to_vec(),
            };
            Ok(())
        }

        fn read_in_pieces(
            &self,
            _: &[u8],
            _: &u64,
            take: &mut dyn FnMut(u64, Vec<u8>) -> Result<(), TarballError>,
        ) -> Result<(), TarballError> {
            let size = self.large.len() as u64;
            self.large.chunks(PIECE_BYTES as usize).try_for_each(|piece| take(size, piece.to_vec()))
        }
    }

    #[derive(Default)]
    struct Frames(Mutex<HashMap<ObjectDigest, Bytes>>);

    impl FrameSink for Frames {
        fn put(&self, frame: Bytes) -> io::Result<ObjectDigest> {
            let digest = ObjectDigest::of(&frame);
            self.0.lock().unwrap().insert(digest, frame);
            Ok(digest)
        }
    }

    #[test]
    fn a_large_file_is_never_in_memory_as_a_whole_and_the_tarball_is_the_same() {
        let mut large = vec![0; 20 << 20];
        blake3::Hasher::new().finalize_xof().fill(&mut large);
        let (limits, interrupt) = (Limits::default(), AtomicBool::new(false));
        let files = Files { large: Arc::new(large), end: b"z", is_whole_allowed: false };
        let frames = Arc::new(Frames::default());
        let build = |files: &Files, threads, base: Option<&Base>| {
            let context = BuildContext { limits: &limits, threads, base, interrupt: &interrupt };
            super::build(files, &Selection::default(), &context, &*frames)
        };
        let built = build(&files, 1, None).unwrap();
        let many_threads = build(&Files { is_whole_allowed: true, ..files.clone() }, 8, None).unwrap();
        assert_eq!(built, many_threads, "eight threads have the memory for it");

        // Of another build, the frames are read one after the other; if one is missing, the rest is made again.
        let changed = Files { end: b"other", ..files.clone() };
        let expected = build(&changed, 1, None).unwrap();
        for missing in [None, Some(built.zstd[7].digest)] {
            let stored = frames.clone();
            let base = Base::new(built.recipe.clone(), move |digest| {
                let frame = stored.0.lock().unwrap().get(digest).cloned();
                frame.filter(|_| missing.as_ref() != Some(digest)).ok_or(io::ErrorKind::NotFound.into())
            });
            let again = build(&changed, 1, Some(&base)).unwrap();
            assert_eq!((again.digest, &again.zstd), (expected.digest, &expected.zstd));
            assert_eq!(again.reused_frames > 2, missing.is_none());
        }
        interrupt.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(build(&files, 1, None), Err(TarballError::Interrupted)));
    }
}
