//! Produces the frames of runs: reuses those of the base, or reads, compresses and puts them.

use std::io;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::assemble::{FinishedRun, Message, ProcessedRun, Tar};
use super::build_context::BuildContext;
use super::chunker;
use super::codec::Codec;
use super::frame_sink::FrameSink;
use super::memory_budget::MemoryBudget;
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
    pub(crate) fn work(
        mut self,
        (runs, parts): (&MemoryBudget, &MemoryBudget),
        jobs: &Mutex<Receiver<Job<C>>>,
        done: &Sender<Message>,
    ) {
        loop {
            // Holding the lock while waiting is intended: one worker waits for a job, the others for the lock.
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { position, key, run }) = job else { return };
            let admitted = Some(run.bytes());
            let result = if run.is_file_larger_than(runs.max_bytes()) {
                self.pass_on(key, run, Parts { budget: parts, done, passed: 0, known: 0 })
            } else {
                self.reuse(&key).map_or_else(|| self.make(key, run), Ok)
            };
            let run = Box::new(ProcessedRun { position, admitted, result });
            if done.send(Message::Run(run)).is_err() {
                return;
            }
        }
    }

    fn reuse(&mut self, key: &RunKey) -> Option<FinishedRun> {
        let mut tar = Vec::new();
        let run = self.context.base?.read(key, &mut self.codec.decompressor, &mut |part| {
            tar.push(part);
            true
        })?;
        Some(FinishedRun { run: RecipeRun { digests: None, ..run.clone() }, tar: Tar::Bytes(tar), reused: true })
    }

    /// Reuses or makes a run that is too large for the memory. It is the only one in progress, so the assembler takes its parts
    /// as they come.
    fn pass_on(&mut self, key: RunKey, run: Run<C>, mut parts: Parts<'_>) -> Result<FinishedRun, TarballError> {
        let base = self.context.base;
        let reused = base.and_then(|base| base.read(&key, &mut self.codec.decompressor, &mut |part| parts.pass(part)));
        if let Some(run) = reused {
            let run = RecipeRun { digests: None, ..run.clone() };
            return Ok(FinishedRun { run, tar: Tar::Passed, reused: true });
        }
        parts.known = std::mem::take(&mut parts.passed);
        let (contents, interrupt) = (self.contents.clone(), self.context.interrupt);
        let (mut cutter, mut frames) = (chunker::Cutter::new(run.is_first()), Vec::new());
        let mut take = |frame: &[u8]| {
            frames.push(self.make_frame(frame).map_err(TarballError::Write)?);
            Ok(())
        };
        run.tar_in_parts(&contents, interrupt, &mut |tar| {
            cutter.add(&tar, &mut take)?;
            if parts.pass(tar) { Ok(()) } else { Err(TarballError::Interrupted) }
        })?;
        cutter.finish(&mut take)?;
        Ok(FinishedRun { run: RecipeRun { key, frames, digests: None }, tar: Tar::Passed, reused: false })
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

/// Passes the tar of a large run on, within a budget.
struct Parts<'a> {
    budget: &'a MemoryBudget,
    done: &'a Sender<Message>,
    /// The bytes that were passed on.
    passed: u64,
    /// The bytes that come again: of a base whose later frame could not be read.
    known: u64,
}

impl Parts<'_> {
    /// Waits until there is room. False: the build has failed.
    fn pass(&mut self, mut tar: Vec<u8>) -> bool {
        let known = self.known.min(tar.len() as u64);
        self.known -= known;
        tar.drain(..known as usize);
        if tar.is_empty() {
            return true;
        }
        let bytes = tar.len() as u64;
        self.passed += bytes;
        self.budget.enter(bytes) && self.done.send(Message::Part(tar)).is_ok()
    }
}
