//! Access lists that name the shards of agents, assignments and issuers by digests.

use std::collections::BTreeSet;

use serde_json::json;
use weir_edge::config::Config;
use weir_protocol::access_list::{AccessList, Entries, Fleet, SHARDS, Table};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::event::EventKind;
use weir_protocol::issuer::Issuer;

use crate::issuers::{ClusterKey, ISSUER, jwks, prepare, status};
use crate::site::{Site, metric_of};
use crate::tiers::{Stream, another, as_shield, shielding};

/// Issuers of which `cluster-7` has issued the tokens of the test.
fn issuers(count: usize, key: &ClusterKey) -> Table<Issuer> {
    let keys: serde_json::Value = serde_json::from_str(&jwks(&[key])).unwrap();
    let entry = |n: usize| {
        let issuer = if n == 7 { ISSUER.to_owned() } else { format!("{ISSUER}/{n}") };
        let entry = json!({ "name": format!("cluster-{n}"), "issuer": issuer, "audience": "weir",
            "subjects": ["system:serviceaccount:weir:agent"], "jwks": keys, "agent": format!("cluster-{n}"),
            "services": ["shop*"] });
        serde_json::from_value(entry).unwrap()
    };
    Table::new(7, (0..count).map(entry), []).unwrap()
}

fn list(issuers: &Table<Issuer>) -> AccessList {
    let fleet = Fleet { issuers: Entries::of(issuers), ..Fleet::default() };
    let mut list = AccessList::default();
    list.set_fleet(fleet.of_cluster(&"one".parse().unwrap()));
    list
}

/// The digests of all shards with documents.
fn digests(list: &AccessList) -> BTreeSet<ObjectDigest> {
    AccessList::parse(list.sharded_json().get().as_bytes()).unwrap().lacking()
}

fn keys_from_origins(config: &mut Config) {
    config.auth.keys_from_origins = true;
}

#[tokio::test]
async fn a_list_applies_when_its_shards_are_there_and_a_change_costs_those_that_changed() {
    let mut site = prepare().await;
    site.origin.serve_events();
    keys_from_origins(&mut site.config);
    site.start_edge().await;
    site.in_step().await;
    let key = ClusterKey::new("key-1");
    let (mut table, token) = (issuers(500, &key), key.bearer("weir", "weir"));
    let first = list(&table);
    let incomplete = |site: &Site| site.metric("weir_edge_access_lists_incomplete", &[]);
    let fetched = |site: &Site| -> Vec<_> {
        site.origin.requests("access").into_iter().filter_map(|request| request.object).collect()
    };
    let mut client = site.client("h2").await;

    site.origin.send_shards(&first, false);
    site.until("the list is known to lack shards", async || incomplete(&site) == 1.0).await;
    assert!(site.admin("/readyz").await.1.contains("has not sent its access list yet"));
    assert_eq!(status(&mut client, &token).await, 401);
    site.origin.send_shards(&first, true);
    site.until("it is complete", async || status(&mut client, &token).await == 200).await;
    assert_eq!((site.in_use("issuers"), incomplete(&site), digests(&first).len()), (500.0, 0.0, SHARDS));
    assert!(site.in_use("fleet_bytes") > 100_000.0);

    // A denial waits for no shard, and a part of a list takes nothing away.
    let (index, shard) = table.changed(&"cluster-7".parse().unwrap(), None, 8);
    table.set_shard(index, shard);
    let mut second = list(&table);
    second.deny_agent("somebody".parse().unwrap()).unwrap();
    let before = fetched(&site).len();
    site.origin.send_shards(&second, false);
    let denied = async || site.metric("weir_edge_access_denied_agents", &[]) == 1.0;
    site.until("the denial is known", denied).await;
    assert_eq!((status(&mut client, &token).await, incomplete(&site)), (200, 1.0));
    site.origin.send_shards(&second, true);
    site.until("the issuer is gone", async || status(&mut client, &token).await == 401).await;
    let changed: Vec<_> = digests(&second).difference(&digests(&first)).copied().collect();
    assert_eq!(changed.len(), 1);
    assert!(fetched(&site)[before..].iter().all(|digest| *digest == changed[0]), "one shard has changed");

    // It starts with what it had, also when nobody sends anything.
    site.stop_edge().await;
    let folder = site.config.cache.dir.join("access");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), SHARDS + 1, "the shards and the lists");
    site.origin.go_down().await;
    site.start_edge().await;
    let known = (site.in_use("issuers"), site.metric("weir_edge_access_denied_agents", &[]));
    assert_eq!(known, (499.0, 1.0));
    site.origin.go_up().await;
    site.in_step().await;
    let before = fetched(&site).len();
    site.origin.send_shards(&first, true);
    site.in_step().await;
    assert_eq!((fetched(&site).len(), site.in_use("issuers")), (before, 499.0), "the origin is behind");
}

#[tokio::test]
async fn an_origin_may_be_upgraded_and_taken_back() {
    let mut site = prepare().await;
    site.origin.serve_events();
    keys_from_origins(&mut site.config);
    site.start_edge().await;
    site.in_step().await;
    let key = ClusterKey::new("key-1");
    let (mut table, token) = (issuers(20, &key), key.bearer("weir", "weir"));
    let mut client = site.client("h2").await;
    // The release before sends whole lists, and knows nothing of shards.
    let whole = |table: &Table<Issuer>| EventKind::Access(list(table).json().get().to_owned().into());
    site.origin.send_event(whole(&table));
    site.until("the whole list is read", async || status(&mut client, &token).await == 200).await;
    assert_eq!(site.origin.requests("access").len(), 0);
    for number in [21, 22] {
        let mut added = issuers(number, &key).get(&format!("cluster-{}", number - 1).parse().unwrap()).unwrap().clone();
        added.issuer = format!("https://{number}.example");
        let (index, shard) = table.changed(&added.name.clone(), Some(added), 8);
        table.set_shard(index, shard);
        match number {
            21 => site.origin.send_shards(&list(&table), true),
            _ => site.origin.send_event(whole(&table)),
        }
        site.until("the change is known", async || site.in_use("issuers") == number as f64).await;
        assert_eq!(status(&mut client, &token).await, 200);
    }
}

#[tokio::test]
async fn a_list_with_more_than_the_edge_may_keep_is_not_used() {
    let mut site = prepare().await;
    site.origin.serve_events();
    keys_from_origins(&mut site.config);
    site.config.auth.fleet_bytes = bytesize::ByteSize::kb(1);
    site.start_edge().await;
    site.in_step().await;
    site.origin.send_shards(&list(&issuers(100, &ClusterKey::new("key-1"))), true);
    site.until("it has tried", async || site.origin.requests("access").len() == digests_of(100)).await;
    let refused = async || site.metric("weir_edge_access_lists_refused_total", &[]) >= 1.0;
    site.until("it is refused", refused).await;
    assert_eq!((site.in_use("issuers"), site.metric("weir_edge_access_lists_incomplete", &[])), (0.0, 1.0));
}

fn digests_of(issuers: usize) -> usize {
    let names = (0..issuers).map(|n| weir_protocol::access_list::shard_of(&format!("cluster-{n}")));
    names.collect::<BTreeSet<_>>().len()
}

#[tokio::test]
async fn a_shield_passes_shards_on_and_whole_lists_to_edges_that_know_none() {
    let change = |config: &mut Config| {
        shielding(config);
        keys_from_origins(config);
    };
    let site = Site::following(|_| {}, change).await;
    let list = list(&issuers(30, &ClusterKey::new("key-1")));
    site.origin.send_shards(&list, true);
    site.until("the shield has them", async || site.in_use("issuers") == 30.0).await;

    let mut client = site.client_as("edge-client", "h2").await;
    for (query, expected) in [("", list.json()), ("?lists=shards", list.sharded_json())] {
        let mut stream = Stream::open_with(&site, &mut client, query).await;
        assert_eq!(stream.next().await.unwrap(), EventKind::Resync);
        let sent = stream.next().await.unwrap();
        assert_eq!(sent, EventKind::Access(expected.get().to_owned().into()), "`{query}`");
    }
    for digest in digests(&list) {
        let reply = client.get(&format!("/v1/access/{digest}"), &[]).await;
        assert_eq!((reply.status, ObjectDigest::of(reply.bytes())), (200, digest));
    }
    let reply = client.get(&format!("/v1/access/{}", ObjectDigest::of(b"none")), &[]).await;
    assert_eq!((reply.status, &reply.problem()["type"]), (404, &"urn:weir:problem:no-such-shard".into()));

    let mut config = another(&site, "edge-2", &[]);
    config.origins = vec![as_shield(&site, site.edge().address())];
    let behind = weir_edge::start(config).await.unwrap();
    let issuers = || metric_of(&behind, "weir_bound_in_use", &[("bound", "issuers")]);
    site.until("the edge behind the shield has them", async || issuers() == 30.0).await;
}
