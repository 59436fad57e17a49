//! Sweeping: superseded versions are dropped, and blobs that nothing names go; after publications and every few minutes.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tokio::time::sleep;

use weir_shared::process::shutdown::Drain;

use crate::publisher::Publisher;
use crate::wall_clock::WallClock;

/// The longest time between two sweeps.
const INTERVAL: Duration = Duration::from_secs(300);

/// The shortest.
const GAP: Duration = Duration::from_secs(10);

/// Sweeps at the start, after publications and every few minutes, until the drain begins.
pub(crate) async fn run(publisher: Arc<Publisher>, published: Arc<Notify>, drain: Drain) {
    let mut clock = WallClock::new(Instant::now(), SystemTime::now());
    loop {
        let (swept, now) = (publisher.clone(), SystemTime::now());
        let clock = clock.look(Instant::now(), now);
        match tokio::task::spawn_blocking(move || swept.sweep(now, clock)).await {
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
