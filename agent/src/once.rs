//! `--once`: runs until every service has a confirmed release and its `exec` has succeeded; for init containers and CI.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::Instant;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::HookState;
use weir_runtime::shutdown::DEFAULT_DRAIN_DEADLINE;

use crate::agent::{Running, start_once};
use crate::config::Config;
use crate::status::ServiceStatus;

/// How long retryable errors are retried, by default.
pub const DEFAULT_ONCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why `--once` failed.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// The agent did not start.
    #[error("{0:#}")]
    Start(anyhow::Error),
    /// No edge said which services there are, and why.
    #[error("no edge listed the services that this agent should follow: {0}")]
    NoList(String),
    /// A service failed.
    #[error("{service}: {reason}")]
    Service {
        /// The service.
        service: ServiceName,
        /// The error.
        reason: String,
    },
}

/// Follows until every service has a verified release that an edge has confirmed since the start, and its `exec` has
/// succeeded. Retryable errors are retried for `timeout`. `exec` never runs for a release that no edge has confirmed.
///
/// # Errors
/// An error that is not retryable, or a retryable one after the timeout.
pub async fn once(config: Config, timeout: Duration) -> Result<(), OnceError> {
    let running = start_once(config).await.map_err(OnceError::Start)?;
    let result = finish(&running, Instant::now() + timeout).await;
    running.drain(DEFAULT_DRAIN_DEADLINE).await;
    result
}

async fn finish(running: &Running, deadline: Instant) -> Result<(), OnceError> {
    let mut error = running.list_error();
    let reason = tokio::select! {
        () = running.services_are_known() => None,
        final_error = error.wait_for(|error| error.as_ref().is_some_and(|error| !error.is_retryable)) => {
            final_error.ok().and_then(|error| error.clone()).map(|error| error.message)
        }
        () = tokio::time::sleep_until(deadline) => {
            let last = running.list_error().borrow().clone();
            Some(last.map_or_else(|| "none answered in time".to_owned(), |error| error.message))
        }
    };
    if let Some(reason) = reason {
        return Err(OnceError::NoList(reason));
    }
    // At the same time: what fails for good must not wait for what may still succeed.
    let services = running.services();
    try_join_all(services.iter().map(|service| finish_service(running, service, deadline))).await?;
    Ok(())
}

async fn finish_service(running: &Running, service: &ServiceName, deadline: Instant) -> Result<(), OnceError> {
    // A service of an earlier run that is no longer listed is not waited for.
    let Some(mut status) = running.service(service).filter(|status| status.borrow().unassigned_since.is_none()) else {
        return Ok(());
    };
    let failed = |reason| OnceError::Service { service: service.clone(), reason };
    let ended = || failed("the task of the service has ended".to_owned());
    loop {
        let progress = progress_of(&status.borrow_and_update());
        match progress {
            Progress::Done => return Ok(()),
            Progress::Failed(reason) => return Err(failed(reason)),
            // A run of `exec` has a timeout of its own.
            Progress::Working => status.changed().await.map_err(|_| ended())?,
            Progress::Waiting(reason) => match tokio::time::timeout_at(deadline, status.changed()).await {
                Ok(changed) => changed.map_err(|_| ended())?,
                Err(_) => return Err(failed(reason.unwrap_or_else(|| "no edge responded in time".to_owned()))),
            },
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Done,
    Working,
    Waiting(Option<String>),
    Failed(String),
}

fn progress_of(status: &ServiceStatus) -> Progress {
    if !status.confirmed {
        return match &status.last_error {
            Some(error) if !status.last_error_retryable => Progress::Failed(error.clone()),
            error => Progress::Waiting(error.clone()),
        };
    }
    match status.hook {
        HookState::None | HookState::Succeeded | HookState::Other => Progress::Done,
        // They wait for labels.
        HookState::Pending if status.hook_error.is_some() => Progress::Waiting(status.hook_error.clone()),
        HookState::Pending | HookState::Running => Progress::Working,
        HookState::Failed => Progress::Failed(status.hook_error.clone().unwrap_or_else(|| "exec failed".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_ends_with_a_confirmed_release_and_a_successful_exec() {
        let mut status = ServiceStatus::default();
        assert_eq!(progress_of(&status), Progress::Waiting(None));
        status.last_error = Some("503".to_owned());
        status.last_error_retryable = true;
        assert_eq!(progress_of(&status), Progress::Waiting(Some("503".to_owned())));
        status.last_error_retryable = false;
        assert_eq!(progress_of(&status), Progress::Failed("503".to_owned()));
        status.confirmed = true;
        for (hook, progress) in [
            (HookState::None, Progress::Done),
            (HookState::Pending, Progress::Working),
            (HookState::Running, Progress::Working),
            (HookState::Succeeded, Progress::Done),
            (HookState::Failed, Progress::Failed("exec failed".to_owned())),
        ] {
            status.hook = hook;
            assert_eq!(progress_of(&status), progress);
        }
    }
}
