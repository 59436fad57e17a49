//! Checks every few seconds whether the disk of the data directory accepts new data.

use std::time::Duration;

use bytesize::ByteSize;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use weir_runtime::shutdown::Drain;
use weir_upstream::{DataDir, free_disk};

use crate::metrics::Metrics;

/// The delay between two checks. A check that hangs, as on a network disk, is waited for.
const INTERVAL: Duration = Duration::from_secs(5);

/// Starts the checks. The receiver has the reason while the disk accepts nothing new, otherwise `None`. The first
/// check is done on return.
pub(crate) async fn start(
    data_dir: DataDir,
    min_free: ByteSize,
    metrics: Metrics,
    drain: &Drain,
) -> watch::Receiver<Option<String>> {
    let check = async move || {
        let (data_dir, metrics) = (data_dir.clone(), metrics.clone());
        let checked = spawn_blocking(move || {
            let free = free_disk::free(data_dir.root());
            if let Ok(free) = free {
                metrics.disk_free_bytes.set(i64::try_from(free.as_u64()).unwrap_or(i64::MAX));
            }
            let problem = free_disk::problem(free, min_free);
            metrics.disk_usable.set(i64::from(problem.is_none()));
            problem
        });
        checked.await.unwrap_or_else(|error| Some(format!("the disk of `data_dir` cannot be checked: {error}")))
    };
    let (sender, updates) = watch::channel(check().await);
    let begun = drain.clone();
    drain.spawn(async move {
        loop {
            tokio::select! {
                () = begun.begun() => return,
                () = sleep(INTERVAL) => {}
            }
            let problem = check().await;
            sender.send_if_modified(|known| {
                let has_changed = known.is_some() != problem.is_some();
                if has_changed {
                    match &problem {
                        Some(reason) => {
                            tracing::warn!(reason, "the disk accepts no new data: nothing is built or downloaded");
                        }
                        None => tracing::info!("the disk accepts new data again"),
                    }
                }
                *known = problem;
                has_changed
            });
        }
    });
    updates
}
