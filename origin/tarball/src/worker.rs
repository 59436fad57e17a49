//! Produces the frames of runs: reuses those of the base, or reads, compresses and puts them.

use std::io;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::assemble::{FinishedRun, ProcessedRun, Tar};
use super::build_context::BuildContext;
use super::chunker;
use super::codec::Codec;
use super::frame_sink::FrameSink;
use super::planner::Job;
use super::recipe::{Coded, RecipeFrame, RecipeRun, RunKey};
use super::run::Run;
use super::{Contents, Selection, TarballError};

/// One of the threads of a build.
pub(crate) struct Worker<'a, C> {
    contents: C,
    selection: &'a Selection,
    context: &'a BuildContext<'a>,
    sink: &'a dyn FrameSink,
    codec: Codec,
}

impl<'a, C: Contents> Worker<'a, C> {
    pub(crate) fn new(
        contents: C,
        selection: &'a Selection,
        context: &'a BuildContext<'a>,
        sink: &'a dyn FrameSink,
    ) -> Self {
        Self { contents, selection, context, sink, codec: Codec::new() }
    }

    /// Runs until there are no more jobs or the assembler is gone.
    pub(crate) fn work(mut self, jobs: &Mutex<Receiver<Job<C>>>, done: &Sender<ProcessedRun>) {
        loop {
            // Holding the lock while waiting is intended: one worker waits for a job, the others for the lock.
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { position, key, run }) = job else { return };
            let admitted = Some(run.bytes());
            let result = self.reuse(&key).map_or_else(|| self.make(key, run), Ok);
            if done.send(ProcessedRun { position, admitted, result }).is_err() {
                return;
            }
        }
    }

    fn reuse(&mut self, key: &RunKey) -> Option<FinishedRun> {
        let (run, tar) = self.context.base?.read(key, &mut self.codec.decompressor)?;
        Some(FinishedRun { run: RecipeRun { digests: None, ..run.clone() }, tar: Tar::Bytes(tar), reused: true })
    }

    fn make(&mut self, key: RunKey, run: Run<C>) -> Result<FinishedRun, TarballError> {
        let is_first = run.is_first();
        let tar = run.tar(&self.contents, self.context.interrupt)?;
        let mut frames = Vec::new();
        for range in chunker::frames(&tar, is_first) {
            frames.push(self.make_frame(&tar[range]).map_err(TarballError::Write)?);
        }
        Ok(FinishedRun { run: RecipeRun { key, frames, digests: None }, tar: Tar::Bytes(vec![tar]), reused: false })
    }

    fn make_frame(&mut self, tar: &[u8]) -> io::Result<RecipeFrame> {
        let put = |frame: Bytes| {
            let size = frame.len() as u64;
            self.sink.put(frame).map(|digest| Coded::new(&digest, size))
        };
        let zstd = put(self.codec.zstd(tar)?)?;
        let gzip = if self.selection.gzip { Some(put(self.codec.gzip(tar)?)?) } else { None };
        Ok(RecipeFrame { tar_size: tar.len() as u64, zstd, gzip })
    }
}
