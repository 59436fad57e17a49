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

/// Runs one service's `exec`.
pub(crate) struct Hook {
    pub(crate) service: ServiceName,
    pub(crate) command: String,
    pub(crate) timeout: Duration,
    pub(crate) directory: Arc<ServiceDirectory>,
    /// Woken after each switch.
    pub(crate) switched: Arc<Notify>,
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
    /// A run under way is finished when the drain begins.
    async fn run(&mut self) {
        // At the start the first poll comes first: it may bring a newer release than the one whose run is still due.
        let mut status = self.status.subscribe();
        tokio::select! {
            () = self.drain.begun() => return,
            _ = status.wait_for(|status| status.confirmed || status.polls > 0) => {}
        }
        // Runs in a row that are still to be done, in this process: what cannot be recorded must not be repeated
        // without a pause either.
        let mut in_vain = 0u32;
        while !self.drain.has_begun() {
            let Some(job) = self.directory.hook_begins() else {
                in_vain = 0;
                self.metrics.pending.set(0.0);
                tokio::select! {
                    () = self.drain.begun() => return,
                    () = self.switched.notified() => continue,
                }
            };
            self.metrics.pending.set(1.0);
            if self.once(&job).await {
                continue;
            }
            let pause = retry::pause(job.attempts.max(in_vain), fastrand::f64());
            in_vain = in_vain.saturating_add(1);
            tokio::select! {
                () = self.drain.begun() => return,
                // A newer release does not wait for the older one's turn.
                () = self.switched.notified() => in_vain = 0,
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
            status.hook_error = Some(format!("the agent failed in itself, which is a bug: {message}"));
        });
    }
}

impl Hook {
    /// One run; whether it succeeded.
    async fn once(&self, job: &HookJob) -> bool {
        let release = job.release.directory;
        self.status.send_modify(|status| status.hook = HookState::Running);
        tracing::info!(service = %self.service, %release, attempt = u64::from(job.attempts) + 1, "exec begins");
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
            Err(error) => tracing::warn!(service = %self.service, %release, %error, "exec failed; it is tried again"),
        }
        let directory = self.directory.clone();
        let recorded = tokio::task::spawn_blocking(move || directory.hook_ended(release, succeeded)).await;
        if let Ok(Err(error)) = &recorded {
            // It runs once more than it had to.
            tracing::warn!(service = %self.service, %error, "the end of exec cannot be recorded");
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
