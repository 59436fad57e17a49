//! One run of a command, in a process group of its own.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use weir_protocol::observed::ProblemKind;

use super::facts::Facts;
use super::output::{self, Tail};
use crate::config::HookCommand;

/// The time from SIGTERM to SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(5);

/// Why a hook failed. `what`: the key of the configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("{what} cannot be started: {source}")]
    Start { what: &'static str, source: std::io::Error },
    /// `stderr`: the last lines that it wrote. They may contain secrets, and the error is reported to edges.
    #[error("{what} exited with {status}")]
    Failed { what: &'static str, status: ExitStatus, stderr: String },
    #[error("{what} ran longer than {after:?} and was terminated")]
    TimedOut { what: &'static str, after: Duration, stderr: String },
    #[error("webhook failed: {0}")]
    Webhook(String),
    #[error("{what} of {} failed: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
    /// The changes could not be listed, or the agent panicked.
    #[error("the hooks cannot be prepared: {0}")]
    Prepare(String),
}

impl HookError {
    /// The value of `result` in metrics.
    pub(crate) fn result(&self) -> &'static str {
        match self {
            Self::Failed { .. } | Self::Webhook(_) => "failure",
            Self::TimedOut { .. } => "timeout",
            Self::Start { .. } | Self::File { .. } | Self::Prepare(_) => "error",
        }
    }

    /// The kind in the status of a service.
    pub(super) fn problem(&self) -> ProblemKind {
        match self {
            Self::TimedOut { .. } => ProblemKind::HookTimeout,
            Self::Failed { .. } | Self::Webhook(_) | Self::Start { .. } | Self::File { .. } | Self::Prepare(_) => {
                ProblemKind::HookFailed
            }
        }
    }

    /// The last lines that a command wrote to stderr.
    pub(super) fn stderr(&self) -> Option<&str> {
        match self {
            Self::Failed { stderr, .. } | Self::TimedOut { stderr, .. } if !stderr.is_empty() => Some(stderr),
            _ => None,
        }
    }
}

/// Kills a process group on drop, so that a dropped run leaves no process behind. `None`: it is kept.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // It fails when the group has no process left.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// One run of a command.
pub(super) struct Run<'a> {
    /// The key of the configuration: `exec` or `check`.
    pub(super) what: &'static str,
    pub(super) command: &'a HookCommand,
    pub(super) facts: &'a Facts,
    pub(super) timeout: Duration,
}

impl Run<'_> {
    fn command(&self) -> Command {
        match self.command {
            HookCommand::Shell(line) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(line);
                command
            }
            HookCommand::Program(words) => {
                let mut words = words.iter();
                let mut command = Command::new(words.next().map_or("", String::as_str));
                command.args(words);
                command
            }
        }
    }

    /// Runs the command to its end, or to its time limit. Dropped, it kills the processes.
    pub(super) async fn finish(self) -> Result<(), HookError> {
        let (what, service) = (self.what, &self.facts.service);
        let mut child = self
            .command()
            .current_dir(&self.facts.path)
            .envs(self.facts.variables())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| HookError::Start { what, source })?;
        // The group has the number of its first process.
        let mut group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
        let (out, err) = <(Mutex<Tail>, Mutex<Tail>)>::default();
        let output = futures_util::future::join(
            output::log(child.stdout.take(), what, service.clone(), "stdout", &out),
            output::log(child.stderr.take(), what, service.clone(), "stderr", &err),
        );
        tokio::pin!(output);
        let mut read_to_end = false;
        let ended = {
            let wait = wait(&mut child, &group, self.timeout);
            tokio::pin!(wait);
            tokio::select! {
                ended = &mut wait => ended,
                _ = &mut output => {
                    read_to_end = true;
                    wait.await
                }
            }
        };
        if let Ok(Some(status)) = &ended
            && status.success()
        {
            // Background processes of a successful command may continue.
            group.0 = None;
        }
        if !read_to_end {
            let _ = tokio::time::timeout(output::GRACE, output).await;
        }
        let stderr = || std::mem::take(&mut *err.lock().unwrap_or_else(PoisonError::into_inner)).into_text();
        match ended.map_err(|source| HookError::Start { what, source })? {
            None => Err(HookError::TimedOut { what, after: self.timeout, stderr: stderr() }),
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(HookError::Failed { what, status, stderr: stderr() }),
        }
    }
}

/// `None`: the timeout.
async fn wait(child: &mut Child, group: &ProcessGroup, timeout: Duration) -> std::io::Result<Option<ExitStatus>> {
    if let Ok(ended) = tokio::time::timeout(timeout, child.wait()).await {
        return ended.map(Some);
    }
    group.signal(Signal::TERM);
    let _ = tokio::time::timeout(TERM_GRACE, child.wait()).await;
    group.signal(Signal::KILL);
    child.wait().await?;
    Ok(None)
}
