//! Triggers a poll when refs of a repository on this machine have moved, as a webhook does for others. The polls at their
//! interval go on, and find what no watch notices.

use std::path::PathBuf;

use tokio::sync::watch;
use weir_upstream::{Address, RepositoryConfig};

use super::repository::Repository;
use super::state::RepositoryState;

/// The path of the repository, if its refs are to be watched.
pub(super) fn watched_path(config: &RepositoryConfig) -> Option<PathBuf> {
    let address = config.url.address().ok().filter(|_| config.watch_refs);
    address.and_then(|address| if let Address::Local(path) = address { Some(path.clone()) } else { None })
}

/// Watches forever. After a failure it tries again with each poll, and logs the first.
#[cfg(target_os = "linux")]
pub(super) async fn follow(repository: &Repository, path: PathBuf, mut state: watch::Receiver<RepositoryState>) {
    use std::sync::Arc;

    use tokio::task::spawn_blocking;
    use weir_git::ref_watch::{RefWatch, WatchError};

    let mut is_reported = false;
    loop {
        let opened = path.clone();
        let opened = spawn_blocking(move || RefWatch::open(&opened)).await;
        let end = match opened.unwrap_or_else(|error| Err(WatchError::Io(error.into()))) {
            Ok(watch) => {
                is_reported = false;
                trigger_polls(repository, &Arc::new(watch), &mut state).await
            }
            Err(error) => Some(error),
        };
        let Some(reason) = end else { continue };
        if !std::mem::replace(&mut is_reported, true) {
            tracing::warn!(repository = %repository.name, %reason, "moved refs of the upstream are found only by polls");
        }
        next_poll(&mut state).await;
    }
}

/// Triggers polls until another watch is needed, at once or, with an error, after the next poll.
#[cfg(target_os = "linux")]
async fn trigger_polls(
    repository: &Repository,
    watch: &std::sync::Arc<weir_git::ref_watch::RefWatch>,
    state: &mut watch::Receiver<RepositoryState>,
) -> Option<weir_git::ref_watch::WatchError> {
    use weir_git::ref_watch::RefChange;

    loop {
        // The first time for what moved before the watch began.
        repository.signals.poll.notify_one();
        let mut changed = std::pin::pin!(watch.changed());
        loop {
            tokio::select! {
                change = &mut changed => match change {
                    Ok(RefChange::Refs) => break,
                    Ok(RefChange::Folders) => {
                        // The next watch may fail.
                        repository.signals.poll.notify_one();
                        return None;
                    }
                    Err(error) => {
                        repository.signals.poll.notify_one();
                        return Some(error);
                    }
                },
                // No event says that a folder above the repository was replaced.
                () = next_poll(state) => {
                    let watch = watch.clone();
                    if !tokio::task::spawn_blocking(move || watch.is_current()).await.unwrap_or(false) {
                        return None;
                    }
                }
            }
        }
    }
}

/// Waits for the end of another poll; forever once the worker has ended.
#[cfg(target_os = "linux")]
async fn next_poll(state: &mut watch::Receiver<RepositoryState>) {
    let polls = state.borrow().polls;
    if state.wait_for(|state| state.polls > polls).await.map(drop).is_err() {
        std::future::pending::<()>().await;
    }
}

/// There is no watch on this system.
#[cfg(not(target_os = "linux"))]
pub(super) async fn follow(_: &Repository, _: PathBuf, _: watch::Receiver<RepositoryState>) {
    std::future::pending::<()>().await;
}
