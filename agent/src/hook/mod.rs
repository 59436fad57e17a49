//! Runs `exec` after switches: at least once per switch, for the newest release, until it succeeds.

mod output;
mod retry;
mod run;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use weir_protocol::name::ServiceName;
use weir_runtime::shutdown::Drain;

use crate::metrics::{HookMetrics, unix_seconds};
use crate::release::{HookJob, ServiceDirectory};
use crate::status::{HookState, ServiceStatus};
use crate::supervise::Task;

/// How long a run that was due at the start waits for the first poll, which may bring a newer release.
const FIRST_POLL_WAIT: Duration = Duration::from_secs(60);

/// The task that runs the `exec` of one service.
pub(crate) struct Hook {
    pub(crate) service: ServiceName,
    pub(crate) command: String,
    pub(crate) timeout: Duration,
    pub(crate) directory: Arc<ServiceDirectory>,
    /// Notified after each switch.
    pub(crate) switched: Arc<Notify>,
    /// Whether the first run waits until an edge has confirmed the release.
    pub(crate) needs_confirmation: bool,
    pub(crate) status: watch::Sender<ServiceStatus>,
    pub(crate) metrics: HookMetrics,
    pub(crate) drain: Drain,
}

/// One run of a command.
pub(crate) struct Run {
    command: String,
    directory: PathBuf,
    variables: [(&'static str, String); 5],
    service: ServiceName,
    timeout: Duration,
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
            let Some(job) = self.directory.begin_hook() else {
                failures = 0;
                self.metrics.pending.set(0.0);
                tokio::select! {
                    () = self.drain.begun() => return,
                    () = self.switched.notified() => continue,
                }
            };
            self.metrics.pending.set(1.0);
            if self.run_once(&job).await {
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
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        self.metrics.error.inc();
        tracing::error!(service = %self.service, message, "the task that runs exec panicked, which is a bug");
        self.status.send_modify(|status| {
            status.hook = HookState::Failed;
            status.hook_failures += 1;
            status.hook_error = Some(format!("the agent panicked, which is a bug: {message}"));
        });
    }
}

impl Hook {
    /// Runs the command; returns whether it succeeded.
    async fn run_once(&self, job: &HookJob) -> bool {
        let release = job.release.directory;
        self.status.send_modify(|status| status.hook = HookState::Running);
        tracing::info!(service = %self.service, %release, attempt = u64::from(job.attempts) + 1, "exec started");
        let text = |value: Option<String>| value.unwrap_or_default();
        let path = self.directory.release_path(release);
        let run = Run {
            command: self.command.clone(),
            variables: [
                ("WEIR_SERVICE", self.service.to_string()),
                ("WEIR_DIGEST", release.digest().to_string()),
                ("WEIR_COMMIT", text(job.release.commit.as_ref().map(ToString::to_string))),
                ("WEIR_REVISION", text(job.release.revision_id.as_ref().map(ToString::to_string))),
                ("WEIR_PREVIOUS_DIGEST", text(job.previous.map(|digest| digest.to_string()))),
            ],
            directory: path,
            service: self.service.clone(),
            timeout: self.timeout,
        };
        let result = run.finish().await;
        let succeeded = result.is_ok();
        match &result {
            Ok(()) => &self.metrics.success,
            Err(run::HookError::Failed(_)) => &self.metrics.failure,
            Err(run::HookError::TimedOut(_)) => &self.metrics.timeout,
            Err(run::HookError::Start(_)) => &self.metrics.error,
        }
        .inc();
        match &result {
            Ok(()) => {
                self.metrics.last_success.set(unix_seconds(SystemTime::now()));
                tracing::info!(service = %self.service, %release, "exec succeeded");
            }
            Err(error) => tracing::warn!(service = %self.service, %release, %error, "exec failed; it will be retried"),
        }
        let directory = self.directory.clone();
        let recorded = tokio::task::spawn_blocking(move || directory.end_hook(release, succeeded)).await;
        if let Ok(Err(error)) = &recorded {
            // It will run once more than necessary.
            tracing::warn!(service = %self.service, %error, "the result of exec cannot be recorded");
        }
        let recorded = matches!(recorded, Ok(Ok(())));
        let pending = self.directory.hook_job();
        self.metrics.pending.set(pending.is_some().into());
        self.status.send_modify(|status| {
            status.hook_runs += 1;
            status.hook_failures += u64::from(!succeeded);
            let for_present = pending.as_ref().is_none_or(|pending| pending.release.directory == release);
            status.hook = match for_present {
                true if succeeded => HookState::Done,
                true => HookState::Failed,
                false => HookState::Pending,
            };
            status.hook_error = result.err().filter(|_| for_present).map(|error| error.to_string());
        });
        succeeded && recorded
    }
}
