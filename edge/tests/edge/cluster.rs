//! Several origins that answer for each other: a cluster.

use std::time::Duration;

use weir_protocol::event::EventKind;

use crate::client::Client;
use crate::site::{Site, TARBALL, ZSTD, always_revalidating};
use crate::test_origin::{Tarball, TestOrigin};

/// A cluster of the origin of a site and others, of which the edge is told only the first. It is not started yet.
pub(crate) async fn cluster(others: usize) -> (Site, Vec<TestOrigin>) {
    let (site, mut members) = (Site::prepare().await, Vec::new());
    for _ in 0..others {
        members.push(TestOrigin::start(site.pki()).await);
    }
    list(&site, &members);
    all(&site, &members).for_each(TestOrigin::serve_events);
    (site, members)
}

pub(crate) fn all<'a>(site: &'a Site, others: &'a [TestOrigin]) -> impl Iterator<Item = &'a TestOrigin> {
    std::iter::once(&site.origin).chain(others)
}

/// All of them name all of them.
fn list(site: &Site, others: &[TestOrigin]) {
    let members: Vec<_> = all(site, others).collect();
    members.iter().for_each(|member| member.list_members(&members));
}

pub(crate) async fn followed(site: &Site, streams: usize) {
    let up = async || site.metric("weir_edge_stream_up", &[]) == streams as f64;
    site.until("the members are followed", up).await;
}

async fn generation(client: &mut Client) -> String {
    client.head(TARBALL, &[]).await.header("weir-generation").to_owned()
}

async fn age(client: &mut Client) -> u64 {
    client.head(TARBALL, &[]).await.header("age").parse().unwrap()
}

fn tombstone(generation: u64) -> EventKind {
    EventKind::Tombstone { service: "shop".parse().unwrap(), generation }
}

pub(crate) fn released() -> EventKind {
    EventKind::Released("shop".parse().unwrap())
}

#[tokio::test]
async fn other_members_answer_when_an_owner_dies() {
    let (mut site, others) = cluster(2).await;
    let (shop, docs) = (Tarball::random(1, 50_000), Tarball::random(2, 50_000));
    others[0].publish("shop", 7, 1, &shop);
    for member in [&site.origin, &others[1]] {
        member.store("shop", 7, 1, &shop);
        member.store("docs", 7, 1, &docs);
    }
    always_revalidating(&mut site.config);
    site.start_edge().await;
    followed(&site, 3).await;
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "7");
    let before = others[0].requests("service").len();
    assert!(before > 0, "its owner is asked first");

    others[0].go_down().await;
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &shop.zstd, "a miss is fetched from another member");
    site.until("another member revalidates it", async || {
        let reply = client.head(TARBALL, &[]).await;
        assert_eq!(reply.status, 200);
        reply.header("cache-status").starts_with("edge-1; fwd=stale; fwd-status=304")
    })
    .await;
    assert_eq!(client.get("/v1/services/docs/tarball", &[ZSTD]).await.bytes(), &docs.zstd);
    assert_eq!(client.head("/v1/services/none/tarball", &[]).await.status, 404, "each of them knows all services");
    assert_eq!(site.metric("weir_edge_generation_regressions_total", &[]), 0.0);
}

#[tokio::test]
async fn freshness_moves_with_the_ownership() {
    let (mut site, others) = cluster(1).await;
    let (old, new) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("shop", 7, 1, &old);
    others[0].store("shop", 7, 1, &old);
    site.config.freshness.fresh = Duration::from_secs(3600);
    site.start_edge().await;
    followed(&site, 2).await;
    let mut client = site.client("h2").await;
    let vouches = async |origin: usize| {
        let status: serde_json::Value = serde_json::from_str(&site.admin("/status").await.1).unwrap();
        status["origins"][origin]["vouches_for"] == 1
    };
    assert!(vouches(0).await && !vouches(1).await);

    site.origin.send_event(released());
    site.until("its heartbeats validate it no longer", async || {
        [&site.origin, &others[0]].iter().for_each(|origin| origin.heartbeat());
        age(&mut client).await > 0
    })
    .await;
    assert!(!vouches(0).await && !vouches(1).await);
    // The other one takes it: nothing has changed.
    others[0].push("shop", 7, 1, &old);
    site.until("the heartbeats of the new owner do", async || {
        others[0].heartbeat();
        age(&mut client).await == 0
    })
    .await;
    assert!(vouches(1).await && !vouches(0).await);
    others[0].push("shop", 8, 1, &new);
    site.until("its publications count", async || generation(&mut client).await == "8").await;

    // The last events of the earlier owner come late, and then a tombstone of its time.
    site.origin.push("shop", 7, 2, &old);
    site.origin.send_event(tombstone(7));
    site.origin.push("other", 1, 1, &old);
    site.until("they have come", async || site.in_use("services") == 2.0).await;
    assert_eq!(generation(&mut client).await, "8");
    assert!(vouches(1).await, "no doubt is left behind");
    assert_eq!(site.metric("weir_edge_push_refused_total", &[]), 0.0);
    assert_eq!(site.metric("weir_edge_generation_regressions_total", &[]), 0.0);
    assert_eq!(site.origin.requests("service").len() + others[0].requests("service").len(), 0);
}

#[tokio::test]
async fn late_events_of_an_earlier_owner_take_nothing_from_the_new_one() {
    let (mut site, others) = cluster(1).await;
    let shop = Tarball::random(1, 1000);
    site.origin.publish("shop", 7, 1, &shop);
    others[0].store("shop", 7, 1, &shop);
    site.config.freshness.fresh = Duration::from_secs(3600);
    site.start_edge().await;
    followed(&site, 2).await;
    let vouches = async |origin: usize| {
        let status: serde_json::Value = serde_json::from_str(&site.admin("/status").await.1).unwrap();
        status["origins"][origin]["vouches_for"] == 1
    };
    others[0].push("shop", 7, 1, &shop);
    site.until("the new owner vouches", async || vouches(1).await).await;
    site.origin.push("shop", 7, 1, &shop);
    site.until("the earlier one repeats itself", async || vouches(0).await).await;
    site.origin.send_event(released());
    site.until("what the new owner said counts", async || vouches(1).await).await;
    assert!(!vouches(0).await);
}

#[tokio::test]
async fn only_a_tombstone_removes_a_service() {
    let (mut site, others) = cluster(1).await;
    let tarball = Tarball::random(1, 1000);
    site.origin.publish("shop", 7, 1, &tarball);
    others[0].store("shop", 7, 1, &tarball);
    site.config.freshness.fresh = Duration::from_secs(3600);
    site.start_edge().await;
    followed(&site, 2).await;
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "7");
    // The owner comes back and owns nothing.
    site.origin.store("shop", 7, 1, &tarball);
    site.origin.forget_cursors();
    site.origin.cut_streams();
    let resynced = async || site.metric("weir_edge_resyncs_total", &[("reason", "cursor_unknown")]) == 1.0;
    site.until("its snapshot has come", resynced).await;
    followed(&site, 2).await;
    assert_eq!(generation(&mut client).await, "7", "silence is no tombstone");

    others[0].push("shop", 8, 1, &tarball);
    site.until("another one has it", async || generation(&mut client).await == "8").await;
    others[0].withdraw("shop");
    site.origin.withdraw("shop");
    others[0].send_event(tombstone(9));
    site.until("it is gone", async || client.head(TARBALL, &[]).await.status == 404).await;
    site.origin.push("shop", 8, 2, &tarball);
    site.origin.push("other", 1, 1, &tarball);
    site.until("a late event has come", async || client.head("/v1/services/other/tarball", &[]).await.status == 200)
        .await;
    assert_eq!(client.head(TARBALL, &[]).await.status, 404, "a tombstone has a generation, too");
    others[0].push("shop", 10, 1, &tarball);
    site.until("it is back", async || client.head(TARBALL, &[]).await.status == 200).await;
}

#[tokio::test]
async fn members_come_and_go_and_are_remembered() {
    let (mut site, mut others) = cluster(1).await;
    site.start_edge().await;
    followed(&site, 2).await;
    others.push(TestOrigin::start(site.pki()).await);
    others[1].serve_events();
    list(&site, &others);
    // The end of a stream is a reason to ask for the members.
    site.origin.cut_streams();
    followed(&site, 3).await;
    assert_eq!(site.metric("weir_edge_members", &[]), 3.0);
    site.stop_edge().await;

    // The configured one is away.
    site.origin.go_down().await;
    let tarball = Tarball::random(1, 1000);
    others[1].publish("shop", 7, 1, &tarball);
    others[0].store("shop", 7, 1, &tarball);
    for member in &others {
        member.list_members(&[&others[0], &others[1]]);
    }
    site.start_edge().await;
    followed(&site, 2).await;
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    // One leaves for good.
    others[0].store("shop", 7, 1, &tarball);
    others[0].list_members(&[&others[0]]);
    others[1].go_down().await;
    let left = async || site.metric("weir_edge_members", &[]) == 1.0;
    site.until("it has left", left).await;
    let name = others[1].url().replace("https://", "");
    let series = async || {
        let families = site.edge().registry().gather();
        let mut labels = families.iter().filter(|family| family.name() == "weir_edge_stream_up").flat_map(|family| {
            family
                .get_metric()
                .iter()
                .flat_map(|metric| metric.get_label().iter().map(|label| label.value().to_owned()))
        });
        labels.any(|label| label == name)
    };
    site.until("nothing waits for it", async || !series().await).await;
    assert_eq!(client.head(TARBALL, &[]).await.status, 200);
}

#[tokio::test]
async fn a_new_member_gets_the_place_of_one_that_left_and_nothing_of_what_it_said() {
    let (mut site, mut others) = cluster(2).await;
    let (old, new) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    others[0].publish("shop", 7, 1, &old);
    [&site.origin, &others[1]].iter().for_each(|member| member.store("shop", 7, 1, &old));
    site.config.freshness.fresh = Duration::from_secs(3600);
    site.start_edge().await;
    followed(&site, 3).await;
    let second = async || {
        let status: serde_json::Value = serde_json::from_str(&site.admin("/status").await.1).unwrap();
        status["origins"][1].clone()
    };
    assert_eq!(second().await["vouches_for"], 1);

    let left = others.remove(0);
    list(&site, &others);
    left.go_down().await;
    site.until("it has left", async || second().await["followed"] == false).await;
    others.push(TestOrigin::start(site.pki()).await);
    others[1].serve_events();
    others[1].store("shop", 7, 1, &old);
    list(&site, &others);
    // The end of a stream is a reason to ask for the members.
    site.origin.cut_streams();
    followed(&site, 3).await;
    let has_heartbeat = async || {
        others[1].heartbeat();
        second().await["last_heartbeat_seconds"].is_u64()
    };
    site.until("the new one is followed", has_heartbeat).await;
    let seen = second().await;
    assert_eq!(seen["name"].as_str(), others[1].url().strip_prefix("https://"));
    assert_eq!(seen["vouches_for"], 0);
    assert_eq!(site.in_use("origins"), 3.0);
    others[1].push("shop", 8, 1, &new);
    let mut client = site.client("h2").await;
    site.until("it publishes", async || generation(&mut client).await == "8").await;
    assert_eq!(second().await["vouches_for"], 1);
}
