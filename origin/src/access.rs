//! The access list for edges: keys that verify tokens, denials, and which agents follow what. An origin itself accepts no
//! tokens.

use bytes::Bytes;
use tokio::sync::watch;
use weir_protocol::access_list::{AccessList, Fleet};
use weir_protocol::name::ClusterId;
use weir_runtime::shutdown::Drain;

use crate::config::AccessConfig;
use crate::metrics::Metrics;

/// Reads the configured files now and whenever they change, and publishes the access list as JSON for all edges, with
/// agents, assignments and issuers as they change, which are those of `cluster`. Without files and entries the list is empty, which makes edges drop an
/// earlier one; documents of operators they keep until a newer revision says so.
///
/// # Errors
/// A file cannot be used.
pub(crate) async fn start(
    config: &AccessConfig,
    mut fleet: watch::Receiver<Fleet>,
    cluster: Option<ClusterId>,
    metrics: &Metrics,
    drain: &Drain,
) -> anyhow::Result<watch::Receiver<Option<Bytes>>> {
    let json = move |list: &AccessList, fleet: Fleet| {
        let mut list = list.clone();
        list.set_fleet(match &cluster {
            Some(cluster) => fleet.of_cluster(cluster),
            None => fleet,
        });
        Some(Bytes::copy_from_slice(list.json().get().as_bytes()))
    };
    let mut lists = config.files().follow(metrics.access_files_readable.clone(), drain).await?;
    let (sender, updates) = watch::channel(json(&lists.borrow_and_update(), fleet.borrow_and_update().clone()));
    let begun = drain.clone();
    drain.spawn(async move {
        // Without files to follow their sender is gone from the start.
        let (mut files_end, mut fleet_ends) = (false, false);
        loop {
            tokio::select! {
                changed = lists.changed(), if !files_end => files_end = changed.is_err(),
                changed = fleet.changed(), if !fleet_ends => fleet_ends = changed.is_err(),
                () = begun.begun() => return,
            }
            let now = json(&lists.borrow_and_update(), fleet.borrow_and_update().clone());
            sender.send_if_modified(|sent| {
                let is_other = *sent != now;
                *sent = now;
                is_other
            });
        }
    });
    Ok(updates)
}
