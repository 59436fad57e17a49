//! `--once`: until every service has a confirmed release and its `exec` has run; for init containers and pipelines.

use std::time::Duration;

use tokio::time::Instant;
use weir_protocol::name::ServiceName;
use weir_runtime::shutdown::DEFAULT_DRAIN_DEADLINE;

use crate::agent::{Running, start};
use crate::config::Config;
use crate::status::{HookState, ServiceStatus};

/// How long failures that time may heal are retried, by default.
pub const DEFAULT_ONCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why `--once` failed.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// The agent did not start.
    #[error("{0:#}")]
    Start(anyhow::Error),
    /// A service could not be followed.
    #[error("{service}: {reason}")]
    Service {
        /// Which one.
        service: ServiceName,
        /// Why.
        reason: String,
    },
}

/// Follows until every service has switched to a verified release, or had the one that it has confirmed, and its
/// `exec` has ended well. Failures that time may heal are retried for `timeout`.
///
/// # Errors
/// Another failure, or one of those when the time is up.
pub async fn once(config: Config, timeout: Duration) -> Result<(), OnceError> {
    let running = start(config).await.map_err(OnceError::Start)?;
    let result = finish(&running, Instant::now() + timeout).await;
    running.drain(DEFAULT_DRAIN_DEADLINE).await;
    result
}

async fn finish(running: &Running, deadline: Instant) -> Result<(), OnceError> {
    for service in running.services() {
        let Some(mut status) = running.service(service) else { continue };
        let failed = |reason| OnceError::Service { service: service.clone(), reason };
        loop {
            let verdict = judge(&status.borrow_and_update());
            match verdict {
                Verdict::Done => break,
                Verdict::Failed(reason) => return Err(failed(reason)),
                // What was begun is brought to its end; it has a time limit of its own.
                Verdict::Working => {
                    if status.changed().await.is_err() {
                        return Err(failed("its task has ended".to_owned()));
                    }
                }
                Verdict::Waiting(reason) => match tokio::time::timeout_at(deadline, status.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Err(failed("its task has ended".to_owned())),
                    Err(_) => {
                        return Err(failed(reason.unwrap_or_else(|| "no edge has answered in time".to_owned())));
                    }
                },
            }
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Done,
    Working,
    Waiting(Option<String>),
    Failed(String),
}

fn judge(status: &ServiceStatus) -> Verdict {
    if !status.confirmed {
        return match &status.last_error {
            Some(error) if !status.last_error_retryable => Verdict::Failed(error.clone()),
            error => Verdict::Waiting(error.clone()),
        };
    }
    match status.hook {
        HookState::None | HookState::Done => Verdict::Done,
        HookState::Pending | HookState::Running => Verdict::Working,
        HookState::Failed => Verdict::Failed(status.hook_error.clone().unwrap_or_else(|| "exec failed".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confirmed_release_whose_exec_ended_well() {
        let mut status = ServiceStatus::default();
        assert_eq!(judge(&status), Verdict::Waiting(None));
        status.last_error = Some("503".to_owned());
        status.last_error_retryable = true;
        assert_eq!(judge(&status), Verdict::Waiting(Some("503".to_owned())));
        status.last_error_retryable = false;
        assert_eq!(judge(&status), Verdict::Failed("503".to_owned()));
        status.confirmed = true;
        for (hook, verdict) in [
            (HookState::None, Verdict::Done),
            (HookState::Pending, Verdict::Working),
            (HookState::Running, Verdict::Working),
            (HookState::Done, Verdict::Done),
            (HookState::Failed, Verdict::Failed("exec failed".to_owned())),
        ] {
            status.hook = hook;
            assert_eq!(judge(&status), verdict);
        }
    }
}
