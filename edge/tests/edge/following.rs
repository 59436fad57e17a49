//! Following the event stream of an origin.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::Semaphore;
use weir_edge::config::FreshnessForConfig;
use weir_protocol::event::EventKind;
use weir_protocol::problem::Problem;

use crate::client::Client;
use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::{Fault, Tarball};

/// An edge that follows the stream of its origin and revalidates nothing for an hour.
async fn following(prepare: impl FnOnce(&Site)) -> Site {
    Site::following(prepare, |_| {}).await
}

async fn generation(client: &mut Client) -> String {
    client.head(TARBALL, &[]).await.header("weir-generation").to_owned()
}

async fn status(site: &Site) -> serde_json::Value {
    serde_json::from_str(&site.admin("/status").await.1).unwrap()
}

#[tokio::test]
async fn a_pushed_version_is_prefetched_and_served() {
    let (old, new) = (Tarball::random(1, 50_000), Tarball::random(2, 50_000));
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &old))).await;
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &old.zstd);
    site.origin.push("shop", 8, 1, &new);
    // A service without requests enters the catalog, and nothing of it is fetched.
    site.origin.push("unused", 3, 1, &Tarball::random(3, 50_000));
    site.until("both are in the catalog", async || site.in_use("services") == 2.0).await;
    let fetched = async || site.metric("weir_edge_fills_total", &[("result", "ok")]) == 2.0;
    site.until("the new version is prefetched", fetched).await;
    assert_eq!(site.origin.requests("object").len(), 2);
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("cache-status")), (&new.zstd, "edge-1; hit"));
    assert_eq!((site.origin.requests("service").len(), site.origin.requests("object").len()), (0, 2));
    assert_eq!(site.metric("weir_edge_prefetches_total", &[("result", "begun")]), 1.0, "the one that is in use");
    // Another representation of a known version is not a push delay.
    let delays = || site.metric("weir_edge_push_delay_seconds", &[]);
    assert_eq!(delays(), 2.0);
    site.origin.push("shop", 8, 2, &new);
    let revision = async || status(&site).await["services"][0]["revision"] == 2;
    site.until("the representation is in the catalog", revision).await;
    assert_eq!(delays(), 2.0);
}

#[tokio::test]
async fn layers_of_a_pushed_version_are_prefetched_for_clients_of_registries() {
    let [old, new, unpulled] = [1, 2, 3].map(|seed| Tarball::random(seed, 50_000).and_oci());
    let publish = |site: &Site| {
        site.origin.publish("shop", 7, 1, &old);
        site.origin.publish("other", 7, 1, &old);
    };
    // One prefetch at a time, so that what is prefetched of the other service is there before.
    let site = Site::following(publish, |config| config.cache.fills = 4).await;
    let mut client = site.client("h2").await;
    for path in ["/v2/weir/shop/manifests/latest", "/v1/services/other/tarball"] {
        assert_eq!(client.get(path, &[ZSTD]).await.status, 200);
    }
    let fetched = async |count: f64| {
        let fetched = async || site.metric("weir_edge_fills_total", &[("result", "ok")]) == count;
        site.until("the new version is prefetched", fetched).await;
    };
    fetched(1.0).await;
    site.origin.push("other", 8, 1, &unpulled);
    fetched(2.0).await;
    site.origin.push("shop", 8, 1, &new);
    fetched(4.0).await;
    site.origin.go_down().await;
    let layer = new.form().unwrap().blobs[0].sha256;
    let reply = client.get(&format!("/v2/weir/shop/blobs/sha256:{layer}"), &[]).await;
    assert_eq!((reply.status, reply.bytes()), (200, &new.layer()));
    assert_eq!(site.metric("weir_edge_fills_total", &[("result", "ok")]), 4.0, "no layer of the other service");
}

#[tokio::test]
async fn prefetches_leave_fill_slots_for_clients() {
    const SERVICES: u64 = 4;
    let name = |number: u64| format!("s{number}");
    let tarball = |seed| Tarball::random(seed, 500_000);
    let site = Site::following(
        |site| {
            for number in 0..SERVICES {
                site.origin.publish(&name(number), 7, 1, &Tarball::random(number, 1000));
            }
        },
        |config| config.cache.fills = 4,
    )
    .await;
    let mut client = site.client("h2").await;
    for number in 0..SERVICES {
        assert_eq!(client.head(&format!("/v1/services/{}/tarball", name(number)), &[]).await.status, 200);
    }
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults((0..SERVICES).map(|_| Fault::Gate(gate.clone())));
    for number in 0..SERVICES {
        site.origin.push(&name(number), 8, 1, &tarball(100 + number));
    }
    let begun = async || site.metric("weir_edge_prefetches_total", &[("result", "begun")]) == SERVICES as f64;
    site.until("all prefetches have begun", begun).await;
    site.until("the first is requested", async || !site.origin.requests("object").is_empty()).await;
    for number in 0..10 * SERVICES {
        client.head(&format!("/v1/services/{}/tarball", name(number % SERVICES)), &[]).await;
    }
    assert_eq!(site.origin.requests("object").len(), 1, "a quarter of the fill slots");
    gate.add_permits(SERVICES as usize);
    let fetched = async || site.metric("weir_edge_fills_total", &[("result", "ok")]) == SERVICES as f64;
    site.until("all are fetched", fetched).await;
}

#[tokio::test]
async fn a_purged_service_is_queried_despite_heartbeats() {
    let token = "an-operators-token";
    let mut site = Site::prepare().await;
    site.origin.serve_events();
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000));
    std::fs::write(site.pki().join("operator-token"), token).unwrap();
    site.config.freshness.fresh = Duration::from_secs(3600);
    site.config.admin.operator_token_file = Some(site.pki().join("operator-token"));
    site.start_edge().await;
    site.in_step().await;
    let mut client = site.client("h2").await;
    client.head(TARBALL, &[]).await;
    assert_eq!(site.origin.requests("service").len(), 0);
    let (status, body) = site.admin_request("POST", "/v1/purge", Some(token), r#"{"service": "shop"}"#).await;
    assert_eq!(status, 200, "{body}");
    site.origin.heartbeat();
    client.head(TARBALL, &[]).await;
    assert!(!site.origin.requests("service").is_empty(), "its origin is queried before it is served again");
}

#[tokio::test]
async fn a_heartbeat_validates_all_services() {
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000)))).await;
    let mut client = site.client("h2").await;
    let mut age = async || client.head(TARBALL, &[]).await.header("age").parse::<u64>().unwrap();
    site.until("it grows old", async || age().await > 0).await;
    let young = async || {
        // Again and again: it is young for a second.
        site.origin.heartbeat();
        age().await == 0
    };
    site.until("it is young again", young).await;
    assert_eq!(site.origin.requests("service").len(), 0);
    let status = status(&site).await;
    assert_eq!(status["origins"][0]["events_followed"], true);
    assert!(status["services"][0]["why"].as_str().unwrap().contains("event stream"), "{status}");
}

#[tokio::test]
async fn a_follower_resumes_at_its_cursor() {
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000)))).await;
    let mut client = site.client("h2").await;
    site.origin.push("shop", 8, 1, &Tarball::random(2, 1000));
    site.until("it follows", async || generation(&mut client).await == "8").await;
    site.origin.cut_streams();
    site.origin.push("shop", 9, 1, &Tarball::random(3, 1000));
    site.until("it has come back", async || generation(&mut client).await == "9").await;
    let requests = site.origin.requests("events");
    let queries = (requests[0].query.as_deref(), requests[1].query.as_deref());
    assert_eq!(queries, (Some("lists=shards"), Some("lists=shards&since=0.1")));
    assert_eq!(site.metric("weir_edge_resyncs_total", &[("reason", "start")]), 1.0);
    assert_eq!(site.metric("weir_edge_resyncs_total", &[]), 1.0);
    assert_eq!(site.origin.requests("service").len(), 0);
}

#[tokio::test]
async fn a_service_missing_from_a_snapshot_is_queried() {
    let tarball = Tarball::random(1, 1000);
    let site = following(|site| {
        for service in ["shop", "gone", "unpublished"] {
            site.origin.publish(service, 7, 1, &tarball);
        }
    })
    .await;
    let mut client = site.client("h2").await;
    let path = |service: &str| format!("/v1/services/{service}/tarball");
    // A new process of the origin: one service was taken out, and another one waits for its first clone.
    site.origin.withdraw("gone");
    site.origin.withdraw("unpublished");
    let clone_is_running = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "any", "Any", "The clone is running.");
    site.origin.answer_descriptors_with(Some(clone_is_running));
    site.origin.push("shop", 8, 1, &Tarball::random(2, 1000));
    site.origin.forget_cursors();
    site.origin.cut_streams();
    site.until("the origin is queried for both", async || site.origin.requests("service").len() >= 2).await;
    for service in ["shop", "gone", "unpublished"] {
        assert_eq!(client.head(&path(service), &[]).await.status, 200, "{service}: silence is no tombstone");
    }
    assert_eq!(generation(&mut client).await, "8");
    site.origin.answer_descriptors_with(None);
    site.origin.publish("unpublished", 9, 1, &tarball);
    site.origin.forget_cursors();
    site.origin.cut_streams();
    site.until("it is gone", async || client.head(&path("gone"), &[]).await.status == 404).await;
    assert_eq!(client.head(&path("unpublished"), &[]).await.status, 200);
    assert!(site.metric("weir_edge_resyncs_total", &[("reason", "cursor_unknown")]) >= 2.0);
}

#[tokio::test]
async fn a_tombstone_removes_a_service_and_a_push_restores_it() {
    let tarball = Tarball::random(1, 1000);
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &tarball))).await;
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[]).await.status, 200);
    site.origin.withdraw("shop");
    site.origin.send_event(EventKind::Tombstone { service: "shop".parse().unwrap(), generation: 7 });
    site.until("it is gone", async || client.get(TARBALL, &[]).await.status == 404).await;
    site.origin.push("shop", 8, 1, &tarball);
    site.until("it is back", async || client.get(TARBALL, &[]).await.status == 200).await;
    assert_eq!(site.origin.requests("service").len(), 0);
}

#[tokio::test]
async fn a_service_that_moves_to_another_origin_is_served_throughout() {
    let (old, new) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    let mut site = Site::prepare().await;
    let second = site.second_origin().await;
    site.config.freshness.fresh = Duration::from_secs(3600);
    for origin in [&site.origin, &second] {
        origin.serve_events();
    }
    for service in ["shop", "other"] {
        site.origin.publish(service, 7, 1, &old);
    }
    site.start_edge().await;
    site.until("both are followed", async || site.metric("weir_edge_stream_up", &[]) == 2.0).await;
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "7");
    // The new origin has cloned nothing yet when the old one lets go.
    let gone = |service: &str| EventKind::Tombstone { service: service.parse().unwrap(), generation: 7 };
    let clone_is_running = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "any", "Any", "The clone is running.");
    second.answer_descriptors_with(Some(clone_is_running));
    for service in ["shop", "other"] {
        site.origin.withdraw(service);
        site.origin.send_event(gone(service));
    }
    site.until("both origins are queried", async || second.requests("service").len() >= 2).await;
    assert_eq!(generation(&mut client).await, "7", "the other one may have it");
    second.answer_descriptors_with(None);
    second.publish("shop", 8, 1, &new);
    site.origin.send_event(gone("shop"));
    site.until("it is found at its new origin", async || {
        let reply = client.head(TARBALL, &[]).await;
        assert_eq!(reply.status, 200);
        reply.header("weir-generation") == "8"
    })
    .await;
    second.push("shop", 9, 1, &old);
    site.until("the new origin's word counts", async || generation(&mut client).await == "9").await;
    // What is at none of them is gone.
    site.origin.send_event(gone("other"));
    let other = "/v1/services/other/tarball";
    site.until("it is gone", async || client.head(other, &[]).await.status == 404).await;
    second.push("other", 8, 1, &new);
    site.until("it is back", async || client.head(other, &[]).await.status == 200).await;
}

#[tokio::test]
async fn a_push_ends_the_negative_entry_of_a_service() {
    let site = following(|_| {}).await;
    let mut client = site.client("h2").await;
    for _ in 0..3 {
        assert_eq!(client.get(TARBALL, &[]).await.status, 404);
    }
    assert_eq!(site.origin.requests("service").len(), 1, "one answer is taken as given for a while");
    let tarball = Tarball::random(1, 1000);
    site.origin.push("shop", 7, 1, &tarball);
    site.until("it is in the table", async || site.in_use("services") == 1.0).await;
    site.until("it is served", async || client.get(TARBALL, &[]).await.status == 200).await;
    assert_eq!(site.origin.requests("service").len(), 1);
}

#[tokio::test]
async fn a_missing_version_is_queried_once_until_the_service_changes() {
    let (one, other) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &one))).await;
    let mut client = site.client("h2").await;
    let path = format!("{TARBALL}s/{}", other.digest());
    for _ in 0..3 {
        assert_eq!(client.get(&path, &[]).await.status, 404);
    }
    assert_eq!(site.origin.requests("version").len(), 1);
    site.origin.push("shop", 8, 1, &other);
    site.origin.push("shop", 9, 1, &one);
    site.until("the service has moved on", async || generation(&mut client).await == "9").await;
    assert_eq!(client.get(&path, &[]).await.status, 200);
    assert_eq!(site.origin.requests("version").len(), 2);
}

#[tokio::test]
async fn an_older_generation_is_rejected_from_any_source() {
    let (new, old) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    let mut site = following(|site| drop(site.origin.publish("shop", 9, 1, &new))).await;
    site.origin.push("shop", 8, 5, &old);
    let alarm = "weir_edge_generation_regressions_total";
    site.until("the origin is queried, and the metric grows", async || site.metric(alarm, &[]) >= 1.0).await;
    assert_eq!(site.metric("weir_edge_push_refused_total", &[("reason", "regressed")]), 1.0);
    assert_eq!(generation(&mut site.client("h2").await).await, "9");
    // Heartbeats do not vouch for it.
    site.origin.heartbeat();
    let service = status(&site).await["services"][0].clone();
    assert!(!service["why"].as_str().unwrap().contains("event stream"), "{service}");
    // It is not quiet about it, also after a restart, until it is over.
    let is_degraded = async |site: &Site| {
        let ready = site.admin("/readyz").await.1;
        let refused = status(site).await["services"][0]["refused_generation"].clone();
        ready.contains("an older generation of shop than was seen") && refused == 8
    };
    assert!(is_degraded(&site).await);
    // Nor does a snapshot bring it back after a crash.
    site.cut_edge().await;
    site.start_edge().await;
    site.until("the snapshot was refused too", async || site.metric(alarm, &[]) >= 1.0).await;
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "9");
    assert!(is_degraded(&site).await);
    site.origin.push("shop", 10, 1, &old);
    site.until("a higher one is taken", async || generation(&mut client).await == "10").await;
    assert!(!is_degraded(&site).await && status(&site).await["services"][0]["refused_generation"].is_null());
}

#[tokio::test]
async fn periodic_revalidation_finds_a_version_that_the_stream_omitted() {
    let site = Site::following(
        |site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000))),
        |config| config.push.revalidate_interval = Duration::from_secs(1),
    )
    .await;
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "7");
    site.origin.publish("shop", 8, 1, &Tarball::random(2, 1000));
    site.until("a query has found it", async || generation(&mut client).await == "8").await;
    let missed = || site.metric("weir_edge_push_missed_total", &[]);
    assert_eq!(missed(), 0.0, "the event may be on its way");
    site.until("the stream has missed it", async || {
        site.origin.heartbeat();
        missed() == 1.0
    })
    .await;
}

#[tokio::test]
async fn a_push_that_is_slower_than_a_query_is_not_missed() {
    let site = Site::following(
        |site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000))),
        |config| config.push.revalidate_interval = Duration::from_secs(1),
    )
    .await;
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "7");
    site.origin.publish("shop", 8, 1, &Tarball::random(2, 1000));
    site.until("a query has found it", async || generation(&mut client).await == "8").await;
    site.origin.push("shop", 8, 1, &Tarball::random(2, 1000));
    let heartbeats = || site.metric("weir_edge_events_total", &[("event", "heartbeat")]);
    let enough = heartbeats() + 5.0;
    site.until("heartbeats follow", async || {
        site.origin.heartbeat();
        heartbeats() >= enough
    })
    .await;
    assert_eq!(site.metric("weir_edge_push_missed_total", &[]), 0.0);
}

#[tokio::test]
async fn a_malformed_stream_is_reopened() {
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000)))).await;
    for (number, babble) in [&b"[]\n"[..], b"{\"event\": \"descriptor\", \"cursor\": \"0.9\", \"descriptor\": {}}\n"]
        .into_iter()
        .enumerate()
    {
        site.origin.babble(babble);
        let begun = (number + 1) as f64;
        let lost = || site.metric("weir_edge_resyncs_total", &[("reason", "lost")]);
        site.until("it is reopened", async || lost() == begun).await;
        assert_eq!(site.metric("weir_edge_streams_ended_total", &[("reason", "malformed")]), begun);
        site.in_step().await;
    }
    // An event of a newer version of the protocol is skipped, and its service queried.
    let newer = br#"{"publication": {"service": "shop", "format": 99}}"#;
    site.origin.send_event(EventKind::Descriptor(newer.as_slice().into()));
    site.origin.send_event(EventKind::Access(b"{}".as_slice().into()));
    site.origin.babble(b"{\"event\": \"of the future\", \"cursor\": \"0.9\"}\n");
    site.until("the origin is queried", async || site.origin.requests("service").len() == 1).await;
    assert_eq!(site.metric("weir_edge_push_refused_total", &[("reason", "unreadable")]), 1.0);
    assert_eq!(site.metric("weir_edge_stream_up", &[]), 1.0);
}

#[tokio::test]
async fn an_origin_without_events_is_polled() {
    let (site, tarball) = Site::serving(1000).await;
    let refused = [("kind", "events"), ("status", "404")];
    let requests = || site.metric("weir_edge_origin_requests_total", &refused);
    site.until("the edge has looked for them", async || requests() == 1.0).await;
    assert_eq!(site.client("h2").await.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    assert_eq!((site.origin.requests("service").len(), site.metric("weir_edge_stream_up", &[])), (1, 0.0));
}

#[tokio::test]
async fn each_service_has_its_own_freshness() {
    let own = FreshnessForConfig {
        services: "shop-*".parse().unwrap(),
        fresh: Some(Duration::from_secs(7)),
        stale_while_revalidate: None,
        wait: None,
        stale_if_error: Some(Duration::from_secs(7200)),
    };
    let tarball = Tarball::random(1, 1000);
    let site = Site::following(
        |site| {
            for service in ["shop", "shop-prod"] {
                site.origin.publish(service, 7, 1, &tarball);
            }
        },
        |config| {
            config.freshness.fresh = Duration::from_secs(15);
            config.freshness_for = vec![own];
        },
    )
    .await;
    let mut client = site.client("h2").await;
    for (service, expected) in [
        ("shop", "max-age=15, stale-while-revalidate=60, stale-if-error=31536000"),
        ("shop-prod", "max-age=7, stale-while-revalidate=60, stale-if-error=7200"),
    ] {
        for path in [format!("/v1/services/{service}/tarball"), format!("/v1/services/{service}")] {
            assert_eq!(client.head(&path, &[]).await.header("cache-control"), expected, "{path}");
        }
    }
}

#[tokio::test]
async fn the_circuit_of_a_failing_origin_opens_and_is_probed() {
    let mut site = following(|site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000)))).await;
    site.origin.go_down().await;
    let circuit = async |site: &Site| status(site).await["origins"][0]["circuit"].as_str().unwrap().to_owned();
    site.until("the circuit opens", async || circuit(&site).await == "open").await;
    assert_eq!((site.metric("weir_edge_origin_up", &[]), site.metric("weir_edge_stream_up", &[])), (0.0, 0.0));
    assert!(site.metric("weir_edge_origin_circuit_opened_total", &[]) >= 1.0);
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "7", "the cached version is served");
    site.origin.go_up().await;
    site.until("it is closed again", async || circuit(&site).await == "closed").await;
    site.in_step().await;
}
