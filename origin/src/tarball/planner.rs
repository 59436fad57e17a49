//! Walks through contents and hands their runs to the workers as there is room for them.

use std::sync::mpsc::Sender;

use super::assemble::{Done, Finished, Tar};
use super::base::Base;
use super::build_context::BuildContext;
use super::cut::Cutter;
use super::memory_budget::MemoryBudget;
use super::recipe::{RecipeRun, RunKey};
use super::run::Run;
use super::walk::{Walked, walk};
use super::{Contents, Entry, Selection, TarballError};

/// A run and which of the tarball it is.
pub(super) struct Job<C: Contents> {
    pub(super) position: usize,
    pub(super) key: RunKey,
    pub(super) run: Run<C>,
}

/// Why a walk ended early.
pub(super) enum Stop {
    Failed(TarballError),
    /// The assembler gave up first and has the reason.
    Unwanted,
}

impl From<TarballError> for Stop {
    fn from(error: TarballError) -> Self {
        Self::Failed(error)
    }
}

/// Walks all of it. Runs go to the workers, or past them to the assembler when nothing of them is needed.
pub(super) fn plan<C: Contents>(
    contents: &C,
    selection: &Selection,
    context: &BuildContext<'_>,
    (budget, jobs, done): (&MemoryBudget, Sender<Job<C>>, Sender<Done>),
) -> Result<Walked, Stop> {
    let mut planner = Planner {
        selection,
        budget,
        jobs,
        done,
        position: 0,
        cutter: Cutter::default(),
        run: Run::first(),
        same_as: context.base,
        pending: Vec::new(),
    };
    let mut unwanted = false;
    let walked = walk(contents, selection, (context.limits, context.interrupt), &mut |entry| {
        planner.add(entry).map_err(|stop| match stop {
            Stop::Failed(error) => error,
            Stop::Unwanted => {
                unwanted = true;
                TarballError::Interrupted
            }
        })
    });
    if unwanted {
        return Err(Stop::Unwanted);
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
    done: Sender<Done>,
    position: usize,
    cutter: Cutter,
    run: Run<C>,
    /// The base, as long as the tar is the same as its.
    same_as: Option<&'a Base>,
    /// Runs that are the same as the base's, until it is known whether their tar is needed: it is not when the state of the
    /// digests behind them is.
    pending: Vec<(Job<C>, &'a RecipeRun)>,
}

impl<C: Contents> Planner<'_, C> {
    fn add(&mut self, entry: Entry<C::File>) -> Result<(), Stop> {
        if self.cutter.begins(&entry.path, entry.tar_bytes()) {
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

    /// The digests behind the pending runs are known, so nothing of them is read.
    fn skip_pending(&mut self) -> Result<(), Stop> {
        for (job, same) in self.pending.drain(..) {
            let result = Ok(Finished { run: same.clone(), tar: Tar::Known, reused: true });
            self.done.send(Done { position: job.position, admitted: None, result }).map_err(|_| Stop::Unwanted)?;
        }
        Ok(())
    }

    fn send_pending(&mut self) -> Result<(), Stop> {
        std::mem::take(&mut self.pending).into_iter().try_for_each(|(job, _)| self.send(job))
    }

    fn send(&self, job: Job<C>) -> Result<(), Stop> {
        if self.budget.enter(job.run.bytes()) {
            self.jobs.send(job).map_err(|_| Stop::Unwanted)
        } else {
            Err(Stop::Unwanted)
        }
    }
}
