//! Runs the hooks of a service. After switches: at least once per switch, for the newest release, until they succeed.
//! Before a switch: its `check`.

mod check;
mod facts;
mod notify;
mod output;
mod retry;
mod run;
mod webhook;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tempfile::NamedTempFile;
use tokio::sync::{Notify, Semaphore, watch};
use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::observed::{HookState, Problem, ProblemKind};
use weir_release::{HookJob, ReleaseRecord, ServiceDirectory};
use weir_runtime::shutdown::Drain;

pub(crate) use self::check::{Check, Veto};
use self::facts::Facts;
use self::run::{HookError, Run};
use crate::config::ServiceConfig;
use crate::hook_labels::{self, LabelsReader};
use crate::metrics::{HookMetrics, unix_seconds};
use crate::status::{ServiceStatus, applied};
use crate::supervise::Task;

/// How long a run that was due at the start waits for the first poll, which may bring a newer release.
const FIRST_POLL_WAIT: Duration = Duration::from_secs(60);

/// The task that runs the hooks of one service after switches.
pub(crate) struct Hook {
    pub(crate) agent: NodeName,
    pub(crate) service: ServiceName,
    pub(crate) config: ServiceConfig,
    /// Only for hooks with `labels`.
    pub(crate) labels: Option<LabelsReader>,
    /// The authority of a webhook that names none.
    pub(crate) ca: PathBuf,
    pub(crate) timeout: Duration,
    /// One permit: held while files of hooks are read or written.
    pub(crate) files: Arc<Semaphore>,
    pub(crate) directory: Arc<ServiceDirectory>,
    /// Notified after each switch.
    pub(crate) switched: Arc<Notify>,
    /// Whether the first run waits until an edge has confirmed the release.
    pub(crate) needs_confirmation: bool,
    pub(crate) status: watch::Sender<ServiceStatus>,
    pub(crate) metrics: HookMetrics,
    pub(crate) drain: Drain,
}

impl Task for Hook {
    /// A drain waits for the run in progress.
    async fn run(&mut self) {
        // The first poll comes first: it may bring a newer release than the one whose run is still due.
        let mut status = self.status.subscribe();
        tokio::select! {
            () = self.drain.begun() => return,
            _ = status.wait_for(|status| status.confirmed || !self.needs_confirmation && status.polls > 0) => {}
            () = tokio::time::sleep(FIRST_POLL_WAIT), if !self.needs_confirmation => {}
        }
        // Failures in a row in this process: a run whose result cannot be recorded must back off, too.
        let mut failures = 0u32;
        while !self.drain.has_begun() {
            let labels = match self.known_labels().await {
                Ok(labels) => labels,
                Err(NoLabels) => {
                    self.show_wait();
                    tokio::select! {
                        () = self.drain.begun() => return,
                        () = changed(&mut self.labels) => continue,
                        () = self.switched.notified() => continue,
                    }
                }
            };
            let Some(job) = self.directory.begin_hook() else {
                failures = 0;
                self.metrics.pending.set(0.0);
                tokio::select! {
                    () = self.drain.begun() => return,
                    () = changed(&mut self.labels) => continue,
                    () = self.switched.notified() => continue,
                }
            };
            self.metrics.pending.set(1.0);
            if self.run_once(&job, labels).await {
                continue;
            }
            // The notification of this release may arrive late. It must not end the back-off.
            if self.directory.hook_job().is_some_and(|due| due.release.directory == job.release.directory) {
                tokio::select! {
                    biased;
                    () = self.switched.notified() => {}
                    () = std::future::ready(()) => {}
                }
            }
            let pause = retry::pause(job.attempts.max(failures), fastrand::f64());
            failures = failures.saturating_add(1);
            tokio::select! {
                () = self.drain.begun() => return,
                // A newer release does not wait for the back-off.
                () = self.switched.notified() => failures = 0,
                () = changed(&mut self.labels) => failures = 0,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        self.metrics.ran("error");
        tracing::error!(service = %self.service, error = message, "the task that runs the hooks panicked, which is a bug");
        self.status.send_modify(|status| {
            status.hook = HookState::Failed;
            status.hook_failures += 1;
            let message = format!("the agent panicked, which is a bug: {message}");
            let (before, now) = (status.hook_problem.as_ref(), SystemTime::now());
            status.hook_problem = Some(Problem::after(before, ProblemKind::HookFailed, message.clone(), now));
            status.hook_error = Some(message);
        });
    }
}

/// The hooks use labels, and there are none yet.
struct NoLabels;

/// Waits for other labels.
async fn changed(labels: &mut Option<LabelsReader>) {
    let is_other = match labels {
        Some(labels) => labels.changed().await.is_ok(),
        None => false,
    };
    if !is_other {
        std::future::pending::<()>().await;
    }
}

impl Hook {
    /// The labels for the next run, which is due if they are others than those of the last one. `Ok(None)`: the hooks use none.
    async fn known_labels(&mut self) -> Result<Option<Arc<Labels>>, NoLabels> {
        let Some(reader) = &mut self.labels else { return Ok(None) };
        let labels = reader.borrow_and_update().clone().ok_or(NoLabels)?;
        let hash = hook_labels::hash(&labels);
        if self.directory.state().requires_labels(&hash) {
            tracing::info!(service = %self.service, "the hooks run with other labels");
            let directory = self.directory.clone();
            let required = tokio::task::spawn_blocking(move || directory.require_labels(&hash)).await;
            if let Ok(Err(error)) = &required {
                tracing::warn!(service = %self.service, %error, "cannot record that the hooks have to run again");
            }
        }
        // A wait is over, if there was one.
        self.status.send_if_modified(|status| {
            let is_over = status.hook == HookState::Pending;
            if is_over {
                let state = self.directory.state();
                let hook = if state.hook_job().is_some() { HookState::Pending } else { HookState::Succeeded };
                (status.hook, status.hook_error, status.hook_problem) = (hook, None, None);
                status.applied = applied(true, &state);
            }
            is_over
        });
        Ok(Some(labels))
    }

    /// Shows that the hooks wait for labels.
    fn show_wait(&self) {
        const WAITS: &str = "the hooks use `labels`, and no edge has sent any for this agent that they may get";
        let is_due = self.directory.state().release.is_some();
        self.metrics.pending.set(is_due.into());
        self.status.send_if_modified(|status| {
            if is_due {
                let before = status.hook_problem.as_ref();
                let problem = Problem::after(before, ProblemKind::Other, WAITS.to_owned(), SystemTime::now());
                status.hook = HookState::Pending;
                (status.hook_error, status.hook_problem) = (Some(WAITS.to_owned()), Some(problem));
            }
            is_due
        });
    }

    /// Lists the changes, and runs all hooks up to the first that fails.
    async fn run_hooks(&self, job: &HookJob, labels: Option<Arc<Labels>>) -> Result<(), HookError> {
        let (release, previous) = (job.release.clone(), job.previous.clone());
        let facts = facts(&self.agent, &self.service, &self.directory, release, previous, labels).await?;
        let ServiceConfig { exec, touch, signal, webhook, .. } = &self.config;
        if let Some(command) = exec {
            Run { what: "exec", command, facts: &facts, timeout: self.timeout }.finish().await?;
        }
        if let Some(path) = touch.clone() {
            let touch = move || notify::touch(&path).map_err(|source| HookError::File { what: "touch", path, source });
            self.on_files("touch", touch).await?;
        }
        if let Some(config) = signal.clone() {
            let failed = |path| move |source| HookError::File { what: "signal", path, source };
            self.on_files("signal", move || notify::signal(&config).map_err(failed(config.pid_file))).await?;
        }
        if let Some(config) = webhook {
            let ca = config.ca.clone().unwrap_or_else(|| self.ca.clone());
            let called = async {
                let tls = self.on_files("webhook", move || webhook::tls(&ca)).await?;
                webhook::send(config, tls, &facts.to_json(), config.timeout).await
            };
            let timed_out = HookError::TimedOut { what: "webhook", after: self.timeout, stderr: String::new() };
            tokio::time::timeout(self.timeout, called).await.unwrap_or(Err(timed_out))?;
        }
        Ok(())
    }

    /// Does something with files on a thread that may block. A file system that hangs costs one thread, not one with each
    /// attempt.
    async fn on_files<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> Result<T, HookError> + Send + 'static,
    ) -> Result<T, HookError> {
        let (files, after) = (self.files.clone(), self.timeout);
        let done = async move {
            let permit = files.acquire_owned().await.expect("the semaphore is never closed");
            let work = move || {
                let _permit = permit;
                work()
            };
            tokio::task::spawn_blocking(work).await.map_err(|error| HookError::Prepare(error.to_string()))?
        };
        tokio::time::timeout(after, done).await.unwrap_or(Err(HookError::TimedOut {
            what,
            after,
            stderr: String::new(),
        }))
    }

    /// Runs the hooks; returns whether they succeeded.
    async fn run_once(&self, job: &HookJob, labels: Option<Arc<Labels>>) -> bool {
        let release = job.release.directory;
        let digest = release.digest();
        self.status.send_modify(|status| status.hook = HookState::Running);
        tracing::info!(service = %self.service, %digest, attempt = u64::from(job.attempts) + 1, "running the hooks");
        let started = Instant::now();
        let labels_hash = labels.as_deref().map(hook_labels::hash);
        let result = self.run_hooks(job, labels).await;
        let took = started.elapsed();
        self.metrics.seconds.observe(took.as_secs_f64());
        let hook_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let succeeded = result.is_ok();
        self.metrics.ran(result.as_ref().map_or_else(HookError::result, |()| "success"));
        match &result {
            Ok(()) => {
                self.metrics.last_success.set(unix_seconds(SystemTime::now()));
                tracing::info!(service = %self.service, %digest, hook_ms, "the hooks succeeded");
            }
            Err(error) => {
                tracing::warn!(service = %self.service, %digest, %error, hook_ms, "a hook failed; all are retried");
            }
        }
        let directory = self.directory.clone();
        let hooks = self.config.hooks_hash();
        let recorded =
            tokio::task::spawn_blocking(move || directory.end_hook(release, succeeded, &hooks, labels_hash.as_deref()))
                .await;
        if let Ok(Err(error)) = &recorded {
            // It will run once more than necessary.
            tracing::warn!(service = %self.service, %error, "the result of the hooks cannot be recorded");
        }
        let recorded = matches!(recorded, Ok(Ok(())));
        let pending = self.directory.hook_job();
        self.metrics.pending.set(pending.is_some().into());
        self.status.send_modify(|status| {
            status.hook_runs += 1;
            status.hook_failures += u64::from(!succeeded);
            let for_present = pending.as_ref().is_none_or(|pending| pending.release.directory == release);
            status.applied = applied(true, &self.directory.state());
            status.hook = match for_present {
                true if !succeeded => HookState::Failed,
                true if recorded => HookState::Succeeded,
                _ => HookState::Pending,
            };
            // It began with the first failure since a success, of whichever release.
            status.hook_problem = result.as_ref().err().map(|error| {
                let before = status.hook_problem.as_ref();
                let output = error.stderr().filter(|_| self.config.report_output).map(str::to_owned);
                Problem { output, ..Problem::after(before, error.problem(), error.to_string(), SystemTime::now()) }
            });
            let error = result.err().filter(|_| for_present);
            let last_line = |error: &HookError| error.stderr()?.lines().next_back().map(str::to_owned);
            status.hook_stderr = error.as_ref().and_then(last_line);
            status.hook_error = error.map(|error| error.to_string());
        });
        succeeded && recorded
    }
}

/// Collects the facts. Reads both releases where files have the same size.
async fn facts(
    agent: &NodeName,
    service: &ServiceName,
    directory: &Arc<ServiceDirectory>,
    release: ReleaseRecord,
    previous: Option<ReleaseRecord>,
    labels: Option<Arc<Labels>>,
) -> Result<Facts, HookError> {
    let path = directory.release_path(release.directory);
    let (before, after) = (previous.as_ref().map(|previous| previous.directory), release.directory);
    let compared = directory.clone();
    let prepared = tokio::task::spawn_blocking(move || {
        let changes = compared.changes(before, after).map_err(|error| error.to_string())?;
        let file = labels.map(|labels| labels_file(&compared.incoming(), &labels).map(|file| (labels, file)));
        Ok::<_, String>((changes, file.transpose().map_err(|error| format!("the file of `WEIR_LABELS`: {error}"))?))
    });
    let prepared = prepared.await.map_err(|error| HookError::Prepare(error.to_string()))?;
    let (changes, labels) = prepared.map_err(HookError::Prepare)?;
    Ok(Facts { service: service.clone(), release, path, previous, changes, agent: agent.clone(), labels })
}

/// A file of labels, as JSON. It is removed when this is dropped.
fn labels_file(folder: &Path, labels: &Labels) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::with_prefix_in("labels-", folder)?;
    file.write_all(&serde_json::to_vec(labels)?)?;
    Ok(file)
}
