//! The access list for edges: keys that verify tokens, and denials. An origin itself accepts no tokens.

use bytes::Bytes;
use tokio::sync::watch;
use weir_protocol::access_list::AccessList;
use weir_runtime::shutdown::Drain;

use crate::config::AccessConfig;
use crate::metrics::Metrics;

/// Reads the configured files now and whenever they change, and publishes the access list as JSON for all edges.
/// Without files the list is empty, which makes edges drop an earlier one.
///
/// # Errors
/// A file cannot be used.
pub(crate) async fn start(
    config: &AccessConfig,
    metrics: &Metrics,
    drain: &Drain,
) -> anyhow::Result<watch::Receiver<Option<Bytes>>> {
    let json = |list: &AccessList| Some(Bytes::copy_from_slice(list.json().get().as_bytes()));
    let mut lists = config.files().follow(metrics.access_files_readable.clone(), drain).await?;
    let (sender, updates) = watch::channel(json(&lists.borrow_and_update()));
    let begun = drain.clone();
    drain.spawn(async move {
        let changes = async {
            while lists.changed().await.is_ok() {
                sender.send_replace(json(&lists.borrow_and_update()));
            }
            std::future::pending::<()>().await;
        };
        tokio::select! { () = changes => {}, () = begun.begun() => {} }
    });
    Ok(updates)
}
