//! The access list for edges: keys that verify tokens, denials, and which agents follow what. An origin itself accepts no
//! tokens.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use weir_protocol::access_list::{AccessList, Entries, Fleet, MAX_ACCESS_LIST_BYTES};
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_protocol::name::ClusterId;
use weir_runtime::shutdown::Drain;

use crate::config::AccessConfig;
use crate::fleet::{FleetEntry, FleetMetrics, Tables};
use crate::metrics::Metrics;

/// The least time between two lists that differ in agents, assignments or issuers: each goes to all edges as a whole, and
/// operators define many of them one by one. A list that differs in keys or denials is sent at once.
const FLEET_INTERVAL: Duration = Duration::from_secs(1);

/// Room in a list for keys and denials, which have bounds of their own, and for the names of fields.
const MAX_KEYS_AND_DENIALS_BYTES: usize = 2 << 20;

/// Reads the configured files now and whenever they change, and publishes the access list as JSON for all edges, with
/// agents, assignments and issuers as they change, which are those of `cluster`. Without files and entries the list is empty, which makes edges drop an
/// earlier one; documents of operators they keep until a newer revision says so.
///
/// # Errors
/// A file cannot be used.
pub(crate) async fn start(
    config: &AccessConfig,
    mut fleet: watch::Receiver<Tables>,
    cluster: Option<ClusterId>,
    (metrics, of_fleet): (&Metrics, &FleetMetrics),
    drain: &Drain,
) -> anyhow::Result<watch::Receiver<Option<Bytes>>> {
    let of_fleet = of_fleet.clone();
    let json =
        move |list: &AccessList, tables: Tables| Some(whole_list(list.clone(), &tables, cluster.as_ref(), &of_fleet));
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

/// The list with all documents of the kinds that it can have. Keys and denials are always in it.
fn whole_list(mut list: AccessList, tables: &Tables, cluster: Option<&ClusterId>, metrics: &FleetMetrics) -> Bytes {
    let mut fleet = Fleet::default();
    // Issuers come first: without them agents are not let in, and a removed one would be trusted on.
    let mut room = MAX_ACCESS_LIST_BYTES - MAX_KEYS_AND_DENIALS_BYTES;
    add::<Issuer>(&mut fleet, tables, &mut room, metrics);
    add::<Agent>(&mut fleet, tables, &mut room, metrics);
    add::<Assignment>(&mut fleet, tables, &mut room, metrics);
    list.set_fleet(match cluster {
        Some(cluster) => fleet.of_cluster(cluster),
        None => fleet,
    });
    Bytes::copy_from_slice(list.json().get().as_bytes())
}

/// Adds a kind to a list that has room for so many bytes. Without its documents, edges use those that they have.
fn add<T: FleetEntry>(fleet: &mut Fleet, tables: &Tables, room: &mut usize, metrics: &FleetMetrics) {
    let table = T::of(tables);
    let of_file: usize = table.file().map(|entry| serde_json::to_vec(entry).map_or(0, |json| json.len())).sum();
    // With a comma for each.
    let bytes = table.bytes() + table.len() + of_file + table.file().len();
    let listed = table.list().ok().filter(|_| bytes <= *room);
    let is_left_out = listed.is_none();
    *T::listed(fleet) = listed.unwrap_or_else(|| {
        let file = table.file().cloned();
        Entries::new(0, [], file).expect("the file is within its bounds")
    });
    *room = room.saturating_sub(if is_left_out { of_file } else { bytes });
    let gauge = metrics.left_out.with_label_values(&[T::KIND]);
    if is_left_out && gauge.get() == 0 {
        tracing::error!(
            kind = T::KIND,
            documents = table.len(),
            bytes,
            "edges do not get these documents: there are more than a list can have; they use what they have"
        );
    }
    gauge.set(is_left_out.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use weir_protocol::access_list::{Entry, MAX_KIND_BYTES, Table};

    use crate::config::LimitsConfig;

    fn fleet(agents: usize) -> Tables {
        let agents = (0..agents).map(|i| -> Agent { serde_json::from_str(&format!(r#"{{"name": "a{i}"}}"#)).unwrap() });
        Tables { agents: Table::new(1, agents, []).unwrap(), ..Tables::default() }
    }

    fn metrics() -> FleetMetrics {
        FleetMetrics::register(&prometheus::Registry::new()).unwrap()
    }

    #[test]
    fn a_kind_that_a_list_cannot_have_is_left_out_and_the_rest_goes() {
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
            let list = AccessList::parse(&whole_list(list, &tables, Some(&cluster), &metrics)).unwrap();
            let of = |kind| metrics.left_out.with_label_values(&[kind]).get();
            assert_eq!((list.fleet().issuers.documents().count(), of("issuers")), expected);
            assert_eq!(
                list.fleet().issuers.revision(),
                if expected.1 == 0 { 7 } else { 0 },
                "edges keep what they have"
            );
            let denied = list.denied_agents().count();
            assert_eq!((list.fleet().agents.iter().count(), denied, of("agents")), (3, 1, of_agents));
        }
    }

    #[test]
    fn a_list_has_room_for_all_that_the_default_bounds_allow() {
        let limits = LimitsConfig::default();
        let commas = limits.max_agents + limits.max_assignments + limits.max_issuers;
        // All that a file can have of one kind.
        let most = limits.fleet_bytes.as_u64() as usize + commas + MAX_KIND_BYTES;
        assert!(most <= MAX_ACCESS_LIST_BYTES - MAX_KEYS_AND_DENIALS_BYTES, "{most}");
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
