//! The access list for edges: keys that verify tokens, denials, and which agents follow what. An origin itself accepts no
//! tokens.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use weir_protocol::access_list::AccessList;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::ClusterId;
use weir_runtime::shutdown::Drain;

use crate::config::AccessConfig;
use crate::fleet::{FleetMetrics, Tables};
use crate::metrics::Metrics;

/// The least time between two lists that differ in agents, assignments or issuers: operators define many of them one by one.
/// A list that differs in keys or denials is sent at once.
const FLEET_INTERVAL: Duration = Duration::from_secs(1);

/// The access list, as edges get it.
pub struct SentList {
    list: AccessList,
    sharded: Bytes,
    /// Made for the first reader that knows no shards.
    whole: OnceLock<Bytes>,
    metrics: FleetMetrics,
}

impl SentList {
    fn new(mut list: AccessList, tables: &Tables, cluster: Option<&ClusterId>, metrics: &FleetMetrics) -> Self {
        let fleet = tables.fleet();
        list.set_fleet(match cluster {
            Some(cluster) => fleet.of_cluster(cluster),
            None => fleet,
        });
        let sharded = Bytes::copy_from_slice(list.sharded_json().get().as_bytes());
        Self { list, sharded, whole: OnceLock::new(), metrics: metrics.clone() }
    }

    /// The list itself.
    pub fn list(&self) -> &AccessList {
        &self.list
    }

    /// For readers that know shards.
    pub(crate) fn sharded(&self) -> Bytes {
        self.sharded.clone()
    }

    /// For edges of the release before: with all documents of the kinds that a list can have. Keys and denials are always in
    /// it.
    pub(crate) fn whole(&self) -> Bytes {
        let make = || {
            let (json, left_out) = self.list.whole_json();
            self.metrics.set_left_out(&left_out);
            Bytes::copy_from_slice(json.get().as_bytes())
        };
        self.whole.get_or_init(make).clone()
    }

    /// The documents of the shard that a digest names.
    pub(crate) fn shard(&self, digest: &ObjectDigest) -> Option<Bytes> {
        self.list.fleet().shard_json(digest).map(Bytes::from)
    }
}

/// Reads the configured files now and whenever they change, and publishes the access list for all edges, with agents,
/// assignments and issuers as they change, which are those of `cluster`. Without files and entries the list is empty, which
/// makes edges drop an earlier one; documents of operators they keep until a newer revision says so.
///
/// # Errors
/// A file cannot be used.
pub(crate) async fn start(
    config: &AccessConfig,
    mut fleet: watch::Receiver<Tables>,
    cluster: Option<ClusterId>,
    (metrics, of_fleet): (&Metrics, &FleetMetrics),
    drain: &Drain,
) -> anyhow::Result<watch::Receiver<Arc<SentList>>> {
    let of_fleet = of_fleet.clone();
    let made =
        move |list: &AccessList, tables: &Tables| SentList::new(list.clone(), tables, cluster.as_ref(), &of_fleet);
    let mut lists = config.files().follow(metrics.access_files_readable.clone(), drain).await?;
    let (sender, updates) =
        watch::channel(Arc::new(made(&lists.borrow_and_update(), &fleet.borrow_and_update().clone())));
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
            let now = made(&lists.borrow_and_update(), &fleet.borrow_and_update().clone());
            sender.send_if_modified(|sent| {
                let is_other = sent.list != now.list;
                if is_other {
                    *sent = Arc::new(now);
                }
                is_other
            });
        }
    });
    Ok(updates)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;
    use weir_protocol::access_list::{Entry, Table};
    use weir_protocol::assignment::Agent;
    use weir_protocol::issuer::Issuer;

    /// The list of an origin without operators' documents that denies an agent.
    pub(crate) fn denying(agent: &str) -> SentList {
        let mut list = AccessList::default();
        list.deny_agent(agent.parse().unwrap()).unwrap();
        SentList::new(list, &Tables::default(), None, &metrics())
    }

    fn fleet(agents: usize) -> Tables {
        let agents = (0..agents).map(|i| -> Agent { serde_json::from_str(&format!(r#"{{"name": "a{i}"}}"#)).unwrap() });
        Tables { agents: Table::new(1, agents, []).unwrap(), ..Tables::default() }
    }

    fn metrics() -> FleetMetrics {
        FleetMetrics::register(&prometheus::Registry::new()).unwrap()
    }

    #[test]
    fn a_kind_that_a_whole_list_cannot_have_is_left_out_and_the_rest_goes() {
        let issuer = |number: usize, kid: &str| -> Issuer {
            let issuer = json!({ "name": format!("i{number}"), "issuer": "https://i", "audience": "weir",
                "subjects": ["s"], "jwks": { "keys": [{ "kid": kid }] }, "agent": "a", "services": ["*"] });
            serde_json::from_value(issuer).unwrap()
        };
        let long = "k".repeat(15_000);
        for (issuers, kid, agents, expected, of_agents) in [
            (3, "k", 2, (3, 0), 0),
            (Issuer::LIMIT, "k", 2, (Issuer::LIMIT, 0), 0),
            (Issuer::LIMIT + 1, "k", 2, (0, 1), 0),
            (700, &*long, 2, (0, 1), 0),
            // Both together are too many: those who let agents in stay.
            (690, &*long, 5_000, (690, 0), 1),
        ] {
            let issuers = Table::new(7, (0..issuers).map(|number| issuer(number, kid)), []).unwrap();
            let agents = Table::new(7, fleet(agents).agents.documents().cloned(), fleet(3).agents.documents().cloned());
            let agents = agents.unwrap();
            let tables = Tables { agents, issuers, ..Tables::default() };
            let (mut list, metrics, cluster) = (AccessList::default(), metrics(), "c".parse().unwrap());
            list.deny_agent("denied".parse().unwrap()).unwrap();
            let sent = SentList::new(list, &tables, Some(&cluster), &metrics);
            let of = |kind| metrics.left_out.with_label_values(&[kind]).get();
            assert_eq!((of("issuers"), of("agents")), (0, 0), "nobody reads it whole");
            let list = AccessList::parse(&sent.whole()).unwrap();
            assert_eq!((list.fleet().issuers.documents().count(), of("issuers")), expected);
            assert_eq!(
                list.fleet().issuers.revision(),
                if expected.1 == 0 { 7 } else { 0 },
                "edges keep what they have"
            );
            let denied = list.denied_agents().count();
            assert_eq!((list.fleet().agents.iter().count(), denied, of("agents")), (3, 1, of_agents));
            SentList::new(AccessList::default(), &fleet(1), None, &metrics).whole();
            assert_eq!((of("issuers"), of("agents")), (0, 0), "of the list that was read last");
        }
    }

    #[test]
    fn issuers_with_urls_are_left_out_of_whole_lists_alone() {
        let ca = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let issuer = |name: &str, jwks: serde_json::Value| -> Issuer {
            let issuer = json!({ "name": name, "issuer": "https://i", "audience": "weir", "subjects": ["s"],
                "jwks": jwks, "agent": "a", "services": ["*"] });
            serde_json::from_value(issuer).unwrap()
        };
        let issuers =
            [issuer("keys", json!({ "keys": [{}] })), issuer("url", json!({ "url": "https://a/", "ca": ca }))];
        let tables = Tables { issuers: Table::new(7, issuers, []).unwrap(), ..Tables::default() };
        let sent = SentList::new(AccessList::default(), &tables, None, &metrics());
        let whole = AccessList::parse(&sent.whole()).unwrap();
        let names: Vec<_> = whole.fleet().issuers.iter().map(|issuer| issuer.name.as_str()).collect();
        assert_eq!((&*names, whole.fleet().issuers.revision()), (&["keys"][..], 7));
        let mut sharded = AccessList::parse(&sent.sharded()).unwrap();
        for digest in sharded.lacking() {
            sharded.add_shard(&digest, &sent.shard(&digest).unwrap()).unwrap();
        }
        assert_eq!(sharded.fleet().issuers.iter().count(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn edits_of_a_second_are_sent_together_and_the_first_at_once() {
        let (edits, followed) = watch::channel(fleet(0));
        let (metrics, drain) = (Metrics::register(&prometheus::Registry::new()).unwrap(), Drain::new());
        let cluster = Some("c".parse().unwrap());
        let mut lists =
            start(&AccessConfig::default(), followed, cluster, (&metrics, &self::metrics()), &drain).await.unwrap();
        let mut next = async || {
            lists.changed().await.unwrap();
            let list = AccessList::parse(&lists.borrow_and_update().whole()).unwrap();
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
