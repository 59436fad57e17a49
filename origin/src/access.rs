//! The access list for edges: keys that verify tokens, denials, and which agents follow what. An origin itself accepts no
//! tokens.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use weir_protocol::access_list::{AccessList, Fleet};
use weir_protocol::name::ClusterId;
use weir_runtime::shutdown::Drain;

use crate::config::AccessConfig;
use crate::metrics::Metrics;

/// The least time between two lists that differ in agents, assignments or issuers: each goes to all edges as a whole, and
/// operators define many of them one by one. A list that differs in keys or denials is sent at once.
const FLEET_INTERVAL: Duration = Duration::from_secs(1);

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
        let (mut sent_at, mut has_changed) = (None::<Instant>, false);
        loop {
            let due = sent_at.map_or_else(Instant::now, |sent_at| sent_at + FLEET_INTERVAL);
            tokio::select! {
                changed = lists.changed(), if !files_end => files_end = changed.is_err(),
                changed = fleet.changed(), if !fleet_ends && !has_changed => {
                    (fleet_ends, has_changed) = (changed.is_err(), true);
                    continue;
                }
                () = sleep_until(due), if has_changed => {}
                () = begun.begun() => return,
            }
            (sent_at, has_changed) = (Some(Instant::now()), false);
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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::access_list::Entries;
    use weir_protocol::assignment::Agent;

    fn fleet(agents: usize) -> Fleet {
        let agents = (0..agents).map(|i| -> Agent { serde_json::from_str(&format!(r#"{{"name": "a{i}"}}"#)).unwrap() });
        Fleet { agents: Entries::new(1, agents, []).unwrap(), ..Fleet::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn edits_of_a_second_are_sent_together_and_the_first_at_once() {
        let (edits, followed) = watch::channel(fleet(0));
        let (metrics, drain) = (Metrics::register(&prometheus::Registry::new()).unwrap(), Drain::new());
        let cluster = Some("c".parse().unwrap());
        let mut lists = start(&AccessConfig::default(), followed, cluster, &metrics, &drain).await.unwrap();
        let mut next = async || {
            lists.changed().await.unwrap();
            let list = AccessList::parse(lists.borrow_and_update().as_ref().unwrap()).unwrap();
            list.fleet().agents.iter().count()
        };
        edits.send_replace(fleet(1));
        let began = Instant::now();
        assert_eq!((next().await, began.elapsed() < FLEET_INTERVAL), (1, true));
        for agents in 2..=100 {
            edits.send_replace(fleet(agents));
            tokio::task::yield_now().await;
        }
        assert_eq!((next().await, began.elapsed() < FLEET_INTERVAL), (100, false));
        drain.cut().await;
    }
}
