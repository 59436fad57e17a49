//! Walks through the contents and passes runs to the workers within the memory budget.

use std::sync::mpsc::Sender;

use super::assemble::{FinishedRun, Message, ProcessedRun, Tar};
use super::base::Base;
use super::build_context::BuildContext;
use super::chunker::Chunker;
use super::memory_budget::MemoryBudget;
use super::recipe::{RecipeRun, RunKey};
use super::run::Run;
use super::walk::{Walked, walk};
use super::{Contents, Entry, Selection, TarballError};

/// A run and its position in the tarball.
pub(crate) struct Job<C: Contents> {
    pub position: usize,
    pub key: RunKey,
    pub run: Run<C>,
}

/// Why a walk ended early.
pub(crate) enum Stop {
    Failed(TarballError),
    /// The assembler has failed and returns the error.
    AssemblerFailed,
}

impl From<TarballError> for Stop {
    fn from(error: TarballError) -> Self {
        Self::Failed(error)
    }
}

/// Walks everything. Runs go to the workers, or directly to the assembler if their bytes are not needed.
pub(crate) fn plan<C: Contents>(
    contents: &C,
    selection: &Selection,
    context: &BuildContext<'_>,
    (budget, jobs, done): (&MemoryBudget, Sender<Job<C>>, Sender<Message>),
) -> Result<Walked, Stop> {
    let mut planner = Planner {
        selection,
        budget,
        jobs,
        done,
        position: 0,
        chunker: Chunker::default(),
        run: Run::first(),
        same_as: context.base,
        pending: Vec::new(),
    };
    let mut unwanted = false;
    let walked = walk(contents, selection, (context.limits, context.interrupt), &mut |entry| {
        planner.add(entry).map_err(|stop| match stop {
            Stop::Failed(error) => error,
            Stop::AssemblerFailed => {
                unwanted = true;
                TarballError::Interrupted
            }
        })
    });
    if unwanted {
        return Err(Stop::AssemblerFailed);
    }
    let walked = walked?;
    if walked.entries > 0 {
        planner.end()?;
    }
    Ok(walked)
}

struct Planner<'a, C: Contents> {
    selection: &'a Selection,
    budget: &'a MemoryBudget,
    jobs: Sender<Job<C>>,
    done: Sender<Message>,
    position: usize,
    chunker: Chunker,
    run: Run<C>,
    /// The base, while both tars are equal.
    same_as: Option<&'a Base>,
    /// Runs equal to the base's. They are read only if no stored state of the digests follows before the first
    /// change.
    pending: Vec<(Job<C>, &'a RecipeRun)>,
}

impl<C: Contents> Planner<'_, C> {
    fn add(&mut self, entry: Entry<C::File>) -> Result<(), Stop> {
        if self.chunker.begins(&entry.path, entry.tar_bytes()) {
            self.end_run()?;
        }
        self.run.add(entry);
        Ok(())
    }

    fn end(mut self) -> Result<(), Stop> {
        self.run.mark_last();
        self.end_run()?;
        self.send_pending()
    }

    fn end_run(&mut self) -> Result<(), Stop> {
        let run = std::mem::take(&mut self.run);
        let job = Job { position: self.position, key: run.key(self.selection), run };
        self.position += 1;
        match self.same_as.and_then(|base| base.run_at(job.position, &job.key)) {
            Some(same) => {
                self.pending.push((job, same));
                if same.digests.is_some() { self.skip_pending() } else { Ok(()) }
            }
            None => {
                self.same_as = None;
                self.send_pending()?;
                self.send(job)
            }
        }
    }

    /// A state of the digests follows the pending runs, so they need not be read.
    fn skip_pending(&mut self) -> Result<(), Stop> {
        for (job, same) in self.pending.drain(..) {
            let result = Ok(FinishedRun { run: same.clone(), tar: Tar::Skipped, reused: true });
            let done = ProcessedRun { position: job.position, admitted: None, result };
            self.done.send(Message::Run(Box::new(done))).map_err(|_| Stop::AssemblerFailed)?;
        }
        Ok(())
    }

    fn send_pending(&mut self) -> Result<(), Stop> {
        std::mem::take(&mut self.pending).into_iter().try_for_each(|(job, _)| self.send(job))
    }

    fn send(&self, job: Job<C>) -> Result<(), Stop> {
        if self.budget.enter(job.run.bytes()) {
            self.jobs.send(job).map_err(|_| Stop::AssemblerFailed)
        } else {
            Err(Stop::AssemblerFailed)
        }
    }
}
