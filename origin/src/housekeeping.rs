//! Sweeping: superseded versions are dropped, and blobs that nothing names go; after publications and every few minutes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::sleep;

use weir_shared::process::shutdown::Drain;

use crate::publisher::Publisher;

/// The longest time between two sweeps.
const INTERVAL: Duration = Duration::from_secs(300);

/// The shortest.
const GAP: Duration = Duration::from_secs(10);

/// Sweeps at the start, after publications and every few minutes, until the drain begins.
pub(crate) async fn run(publisher: Arc<Publisher>, published: Arc<Notify>, drain: Drain) {
    loop {
        let swept = publisher.clone();
        match tokio::task::spawn_blocking(move || swept.sweep(SystemTime::now())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "blobs cannot be swept"),
            Err(error) => tracing::warn!(%error, "a sweep ended with a fault"),
        }
        tokio::select! {
            () = drain.begun() => return,
            () = sleep(GAP) => {}
        }
        tokio::select! {
            () = drain.begun() => return,
            () = published.notified() => {}
            () = sleep(INTERVAL) => {}
        }
    }
}
