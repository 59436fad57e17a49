//! One run of a command, in a process group of its own.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::{Run, output};

/// The time from SIGTERM to SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(5);

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error("exec cannot be started: {0}")]
    Start(std::io::Error),
    #[error("exec ended with {0}")]
    Failed(ExitStatus),
    #[error("exec ran longer than {0:?} and was killed")]
    TimedOut(Duration),
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

impl Run {
    /// Runs the command to its end, or to its time limit.
    pub(super) async fn finish(self) -> Result<(), HookError> {
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(&self.command)
            .current_dir(&self.directory)
            .envs(self.variables)
            .env("WEIR_RELEASE", &self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(HookError::Start)?;
        // The group has the number of its first process.
        let mut group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
        let out = child.stdout.take().map(|stream| output::log(stream, self.service.clone(), "stdout"));
        let err = child.stderr.take().map(|stream| output::log(stream, self.service, "stderr"));
        let output = async {
            tokio::join!(
                async {
                    if let Some(out) = out {
                        out.await;
                    }
                },
                async {
                    if let Some(err) = err {
                        err.await;
                    }
                }
            );
        };
        tokio::pin!(output);
        let mut read_to_end = false;
        let ended = {
            let wait = wait(&mut child, &group, self.timeout);
            tokio::pin!(wait);
            tokio::select! {
                ended = &mut wait => ended,
                () = &mut output => {
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
        match ended.map_err(HookError::Start)? {
            None => Err(HookError::TimedOut(self.timeout)),
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(HookError::Failed(status)),
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
