//! The event stream of an origin, followed.

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

/// An edge that would not ask for an hour, in step with its origin.
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
async fn what_is_pushed_is_served_and_was_fetched_before_anybody_asked() {
    let (old, new) = (Tarball::random(1, 50_000), Tarball::random(2, 50_000));
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &old))).await;
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &old.zstd);
    site.origin.push("shop", 8, 1, &new);
    // A service that nobody asks for is known too, and nothing is fetched of it.
    site.origin.push("unused", 3, 1, &Tarball::random(3, 50_000));
    site.until("both are in the table", async || site.in_use("services") == 2.0).await;
    let fetched = async || site.metric("weir_edge_fills_total", &[("result", "ok")]) == 2.0;
    site.until("the new version is here", fetched).await;
    assert_eq!(site.origin.asked("object").len(), 2);
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("cache-status")), (&new.zstd, "edge-1; hit"));
    assert_eq!((site.origin.asked("service").len(), site.origin.asked("object").len()), (0, 2));
    assert_eq!(site.metric("weir_edge_prefetches_total", &[("result", "begun")]), 1.0, "the one that is in use");
    // Another form of a version that is known says nothing of how long pushes take.
    let delays = || site.metric("weir_edge_push_delay_seconds", &[]);
    assert_eq!(delays(), 2.0);
    site.origin.push("shop", 8, 2, &new);
    let revision = async || status(&site).await["services"][0]["revision"] == 2;
    site.until("the form is in the table", revision).await;
    assert_eq!(delays(), 2.0);
}

#[tokio::test]
async fn what_is_fetched_before_anybody_asks_leaves_room_for_those_who_do() {
    const SERVICES: u64 = 4;
    let name = |number: u64| format!("s{number}");
    let tarball = |seed| Tarball::random(seed, 500_000);
    let site = Site::following(
        |site| {
            for number in 0..SERVICES {
                site.origin.publish(&name(number), 7, 1, &Tarball::random(number, 1000));
            }
        },
        |config| config.cache.fetches = 4,
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
    site.until("all are to be fetched", begun).await;
    site.until("the first is asked for", async || !site.origin.asked("object").is_empty()).await;
    for number in 0..10 * SERVICES {
        client.head(&format!("/v1/services/{}/tarball", name(number % SERVICES)), &[]).await;
    }
    assert_eq!(site.origin.asked("object").len(), 1, "a quarter of what may be fetched at a time");
    gate.add_permits(SERVICES as usize);
    let fetched = async || site.metric("weir_edge_fills_total", &[("result", "ok")]) == SERVICES as f64;
    site.until("all are fetched", fetched).await;
}

#[tokio::test]
async fn what_is_purged_is_asked_for_though_the_stream_says_that_nothing_has_changed() {
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
    assert_eq!(site.origin.asked("service").len(), 0);
    let (status, body) = site.admin_request("POST", "/v1/purge", Some(token), r#"{"service": "shop"}"#).await;
    assert_eq!(status, 200, "{body}");
    site.origin.heartbeat();
    client.head(TARBALL, &[]).await;
    assert!(!site.origin.asked("service").is_empty(), "its origin is asked before it is served again");
}

#[tokio::test]
async fn a_heartbeat_is_the_origin_s_word_on_everything() {
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
    assert_eq!(site.origin.asked("service").len(), 0);
    let status = status(&site).await;
    assert_eq!(status["origins"][0]["events_followed"], true);
    assert!(status["services"][0]["why"].as_str().unwrap().contains("event stream"), "{status}");
}

#[tokio::test]
async fn a_follower_that_was_cut_off_goes_on_where_it_was() {
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000)))).await;
    let mut client = site.client("h2").await;
    site.origin.push("shop", 8, 1, &Tarball::random(2, 1000));
    site.until("it follows", async || generation(&mut client).await == "8").await;
    site.origin.cut_streams();
    site.origin.push("shop", 9, 1, &Tarball::random(3, 1000));
    site.until("it has come back", async || generation(&mut client).await == "9").await;
    let asked = site.origin.asked("events");
    assert_eq!((asked[0].query.as_deref(), asked[1].query.as_deref()), (None, Some("since=0.1")));
    assert_eq!(site.metric("weir_edge_resyncs_total", &[("reason", "start")]), 1.0);
    assert_eq!(site.metric("weir_edge_resyncs_total", &[]), 1.0);
    assert_eq!(site.origin.asked("service").len(), 0);
}

#[tokio::test]
async fn what_a_snapshot_leaves_out_is_asked_about() {
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
    site.until("the origin is asked about both", async || site.origin.asked("service").len() >= 2).await;
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
async fn a_tombstone_ends_a_service_and_a_push_brings_it_back() {
    let tarball = Tarball::random(1, 1000);
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &tarball))).await;
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[]).await.status, 200);
    site.origin.withdraw("shop");
    site.origin.tell(EventKind::Tombstone { service: "shop".parse().unwrap(), generation: 7 });
    site.until("it is gone", async || client.get(TARBALL, &[]).await.status == 404).await;
    site.origin.push("shop", 8, 1, &tarball);
    site.until("it is back", async || client.get(TARBALL, &[]).await.status == 200).await;
    assert_eq!(site.origin.asked("service").len(), 0);
}

#[tokio::test]
async fn a_service_that_moves_to_another_origin_is_served_all_the_while() {
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
        site.origin.tell(gone(service));
    }
    site.until("both origins are asked", async || second.asked("service").len() >= 2).await;
    assert_eq!(generation(&mut client).await, "7", "the other one may have it");
    second.answer_descriptors_with(None);
    second.publish("shop", 8, 1, &new);
    site.origin.tell(gone("shop"));
    site.until("it is found at its new origin", async || {
        let reply = client.head(TARBALL, &[]).await;
        assert_eq!(reply.status, 200);
        reply.header("weir-generation") == "8"
    })
    .await;
    second.push("shop", 9, 1, &old);
    site.until("the new origin's word counts", async || generation(&mut client).await == "9").await;
    // What is at none of them is gone.
    site.origin.tell(gone("other"));
    let other = "/v1/services/other/tarball";
    site.until("it is gone", async || client.head(other, &[]).await.status == 404).await;
    second.push("other", 8, 1, &new);
    site.until("it is back", async || client.head(other, &[]).await.status == 200).await;
}

#[tokio::test]
async fn a_service_that_was_not_there_is_there_at_once_when_it_is_pushed() {
    let site = following(|_| {}).await;
    let mut client = site.client("h2").await;
    for _ in 0..3 {
        assert_eq!(client.get(TARBALL, &[]).await.status, 404);
    }
    assert_eq!(site.origin.asked("service").len(), 1, "one answer is taken as given for a while");
    let tarball = Tarball::random(1, 1000);
    site.origin.push("shop", 7, 1, &tarball);
    site.until("it is in the table", async || site.in_use("services") == 1.0).await;
    site.until("it is served", async || client.get(TARBALL, &[]).await.status == 200).await;
    assert_eq!(site.origin.asked("service").len(), 1);
}

#[tokio::test]
async fn a_version_that_was_not_there_is_asked_for_once_until_the_service_has_a_newer_word() {
    let (one, other) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &one))).await;
    let mut client = site.client("h2").await;
    let path = format!("{TARBALL}s/{}", other.digest());
    for _ in 0..3 {
        assert_eq!(client.get(&path, &[]).await.status, 404);
    }
    assert_eq!(site.origin.asked("version").len(), 1);
    site.origin.push("shop", 8, 1, &other);
    site.origin.push("shop", 9, 1, &one);
    site.until("the service has moved on", async || generation(&mut client).await == "9").await;
    assert_eq!(client.get(&path, &[]).await.status, 200);
    assert_eq!(site.origin.asked("version").len(), 2);
}

#[tokio::test]
async fn something_older_is_refused_however_it_comes() {
    let (new, old) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    let mut site = following(|site| drop(site.origin.publish("shop", 9, 1, &new))).await;
    site.origin.push("shop", 8, 5, &old);
    let alarm = "weir_edge_generation_regressions_total";
    site.until("the origin is asked, and the alarm raised", async || site.metric(alarm, &[]) >= 1.0).await;
    assert_eq!(site.metric("weir_edge_push_refused_total", &[("reason", "regressed")]), 1.0);
    assert_eq!(generation(&mut site.client("h2").await).await, "9");
    // Heartbeats do not vouch for it.
    site.origin.heartbeat();
    let service = status(&site).await["services"][0].clone();
    assert!(!service["why"].as_str().unwrap().contains("event stream"), "{service}");
    // Nor does a snapshot bring it back after a crash.
    site.cut_edge().await;
    site.start_edge().await;
    site.until("the snapshot was refused too", async || site.metric(alarm, &[]) >= 1.0).await;
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "9");
    site.origin.push("shop", 10, 1, &old);
    site.until("a higher one is taken", async || generation(&mut client).await == "10").await;
}

#[tokio::test]
async fn what_the_stream_keeps_to_itself_is_found() {
    let site = Site::following(
        |site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000))),
        |config| config.push.revalidate_interval = Duration::from_secs(1),
    )
    .await;
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "7");
    site.origin.publish("shop", 8, 1, &Tarball::random(2, 1000));
    site.until("a query has found it", async || generation(&mut client).await == "8").await;
}

#[tokio::test]
async fn a_stream_that_makes_no_sense_is_begun_anew() {
    let site = following(|site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000)))).await;
    for (number, babble) in [&b"[]\n"[..], b"{\"event\": \"descriptor\", \"cursor\": \"0.9\", \"descriptor\": {}}\n"]
        .into_iter()
        .enumerate()
    {
        site.origin.babble(babble);
        let begun = (number + 1) as f64;
        let lost = || site.metric("weir_edge_resyncs_total", &[("reason", "lost")]);
        site.until("it begins anew", async || lost() == begun).await;
        assert_eq!(site.metric("weir_edge_streams_ended_total", &[("reason", "malformed")]), begun);
        site.in_step().await;
    }
    // What a newer origin writes is no reason to stop: its service is asked about.
    let newer = br#"{"publication": {"service": "shop", "format": 99}}"#;
    site.origin.tell(EventKind::Descriptor(newer.as_slice().into()));
    site.origin.tell(EventKind::Access(b"{}".as_slice().into()));
    site.origin.babble(b"{\"event\": \"of the future\", \"cursor\": \"0.9\"}\n");
    site.until("the origin is asked", async || site.origin.asked("service").len() == 1).await;
    assert_eq!(site.metric("weir_edge_push_refused_total", &[("reason", "unreadable")]), 1.0);
    assert_eq!(site.metric("weir_edge_stream_up", &[]), 1.0);
}

#[tokio::test]
async fn an_origin_without_events_is_polled() {
    let (site, tarball) = Site::serving(1000).await;
    let refused = [("kind", "events"), ("status", "404")];
    let asked = || site.metric("weir_edge_origin_requests_total", &refused);
    site.until("the edge has looked for them", async || asked() == 1.0).await;
    assert_eq!(site.client("h2").await.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    assert_eq!((site.origin.asked("service").len(), site.metric("weir_edge_stream_up", &[])), (1, 0.0));
}

#[tokio::test]
async fn each_service_has_the_freshness_of_its_own() {
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
async fn an_origin_that_does_not_answer_is_left_alone_and_tried_now_and_then() {
    let mut site = following(|site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000)))).await;
    site.origin.go_down().await;
    let circuit = async |site: &Site| status(site).await["origins"][0]["circuit"].as_str().unwrap().to_owned();
    site.until("the circuit opens", async || circuit(&site).await == "open").await;
    assert_eq!((site.metric("weir_edge_origin_up", &[]), site.metric("weir_edge_stream_up", &[])), (0.0, 0.0));
    assert!(site.metric("weir_edge_origin_circuit_opened_total", &[]) >= 1.0);
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await, "7", "what is held is served");
    site.origin.go_up().await;
    site.until("it is closed again", async || circuit(&site).await == "closed").await;
    site.in_step().await;
}
