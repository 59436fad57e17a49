//! Checks every few seconds whether the disk of the data directory accepts new data.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;
use rustix::fs::Access;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use weir_runtime::shutdown::Drain;

use crate::data_dir::DataDir;
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
            let free = free(data_dir.root());
            if let Ok(free) = free {
                metrics.disk_free_bytes.set(i64::try_from(free.as_u64()).unwrap_or(i64::MAX));
            }
            let problem = problem(free, min_free);
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
                            tracing::warn!(reason, "the disk accepts no new data: nothing new is published");
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

/// Fails if the disk has less free space than this.
pub(crate) fn require_room(data_dir: &DataDir, min_free_bytes: u64) -> Result<(), String> {
    problem(free(data_dir.root()), ByteSize(min_free_bytes)).map_or(Ok(()), Err)
}

/// The free space, if the directory is writable.
fn free(directory: &Path) -> io::Result<ByteSize> {
    rustix::fs::access(directory, Access::WRITE_OK)?;
    let disk = rustix::fs::statvfs(directory)?;
    Ok(ByteSize(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

fn problem(free: io::Result<ByteSize>, min_free: ByteSize) -> Option<String> {
    match free {
        Err(error) => Some(format!("`data_dir` cannot be written: {error}")),
        Ok(free) if free < min_free || free == ByteSize(0) => {
            Some(format!("the disk of `data_dir` has {free} left, but builds need {min_free} (`min_free`)"))
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_even_if_min_free_is_0() {
        let mib = ByteSize::mib;
        assert_eq!(problem(Ok(mib(64)), mib(64)), None);
        assert!(problem(Ok(mib(63)), mib(64)).unwrap().contains("63.0 MiB"));
        assert!(problem(Ok(mib(0)), mib(0)).is_some());
        let read_only = io::Error::from_raw_os_error(rustix::io::Errno::ROFS.raw_os_error());
        assert!(problem(Err(read_only), mib(0)).unwrap().contains("Read-only file system"));
        let dir = tempfile::tempdir().unwrap();
        assert!(free(dir.path()).unwrap() > mib(0));
        assert!(free(&dir.path().join("gone")).is_err());
    }
}
