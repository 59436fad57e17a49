//! What queries about services and about their versions have in common.

use std::time::Duration;

use weir_cache::single_flight::Waiter;

use super::error::LookupError;

/// The timeout of the first query about a service, or about a version of it.
pub(super) const FIRST_QUERY_TIMEOUT: Duration = Duration::from_secs(15);

/// The most queries in flight, of each kind.
pub(super) const MAX_QUERIES: usize = 1024;

/// The result of a task, awaited at most `wait` from its start.
pub(super) async fn wait_for<T: Clone>(
    wait: Duration,
    waiter: Waiter<Result<T, LookupError>>,
) -> Result<T, LookupError> {
    let left = wait.saturating_sub(waiter.elapsed());
    tokio::time::timeout(left, waiter.result()).await.map_err(|_| LookupError::TooSlow)??
}
