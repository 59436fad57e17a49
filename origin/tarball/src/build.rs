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
/// Memory: at most 4 MiB of tar for each of `threads + 2`, or one larger file, and one frame for each thread.
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
    let (jobs, next_job) = channel();
    let next_job = Mutex::new(next_job);
    let (done, finished) = channel();
    std::thread::scope(|scope| {
        let (budget, next_job) = (&budget, &next_job);
        let (walked, planned) = (contents.clone(), done.clone());
        let walker = scope.spawn(move || {
            let _guard = CloseOnPanic(budget);
            plan(&walked, selection, context, (budget, jobs, planned))
        });
        for _ in 0..threads {
            let (contents, done) = (contents.clone(), done.clone());
            scope.spawn(move || {
                let _guard = CloseOnPanic(budget);
                Worker::new(contents, selection, context, sink).work(next_job, &done);
            });
        }
        drop(done);
        let _guard = CloseOnPanic(budget);
        let mut assembler = Assembler::new(context, budget);
        let assembled = assembler.take_all(&finished);
        // After an error, no further run will be hashed.
        budget.close();
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
struct CloseOnPanic<'a>(&'a MemoryBudget);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close();
        }
    }
}
