//! What the edge knows of services: on disk, in memory, and as its origins announce it.

use std::fs;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use http::StatusCode;
use serde_json::Value;
use weir_protocol::event::{EventKind, RevisionSeen, Upstream};
use weir_protocol::problem::Problem;

use crate::mount::Mount;
use crate::site::{Site, TARBALL, ZSTD, always_revalidating};
use crate::test_origin::Tarball;

const SERVICE: &str = "/v1/services/shop";

fn seen(revision: &str, reachable: bool) -> EventKind {
    let seen_at = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
    EventKind::Revision(RevisionSeen {
        repository: "shop".parse().unwrap(),
        followed_ref: "main".to_owned(),
        revision_id: revision.parse().unwrap(),
        seen_at,
        upstream: Upstream { reachable, since: seen_at },
    })
}

#[tokio::test]
async fn a_descriptor_has_its_revision_status() {
    let tarball = Tarball::random(1, 1000);
    let site = Site::following(|site| drop(site.origin.publish("shop", 7, 1, &tarball)), |_| {}).await;
    let mut client = site.client("h2").await;
    let plain = client.get(SERVICE, &[]).await;
    let descriptor: Value = serde_json::from_slice(plain.bytes()).unwrap();
    assert!(descriptor.get("seen").is_none());

    site.origin.send_event(seen("sha1:aa", true));
    let read = async |client: &mut crate::client::Client| -> Value {
        serde_json::from_slice(client.get(SERVICE, &[]).await.bytes()).unwrap()
    };
    site.until("it is announced", async || read(&mut client).await["seen"]["revision_id"] == "sha1:aa").await;
    let reply = client.get(SERVICE, &[]).await;
    let text = String::from_utf8(reply.bytes().to_vec()).unwrap();
    let whole = String::from_utf8(plain.bytes().to_vec()).unwrap();
    assert!(text.ends_with(&whole[1..]), "what the origin wrote is there byte for byte: {text}");
    assert!(read(&mut client).await["seen"]["upstream_unreachable_since"].is_null());
    let (old, tag) = (plain.header("etag").to_owned(), reply.header("etag").to_owned());
    assert_eq!(client.get(SERVICE, &[("if-none-match", &tag)]).await.status, 304);
    assert_eq!(client.get(SERVICE, &[("if-none-match", &old)]).await.status, 200);

    site.origin.send_event(seen("sha1:aa", false));
    let since = async |client: &mut _| read(client).await["seen"]["upstream_unreachable_since"].clone();
    site.until("the upstream is away", async || since(&mut client).await == "1970-01-01T00:01:00Z").await;
    assert_eq!(client.get(SERVICE, &[("if-none-match", &tag)]).await.status, 200, "that is news, too");
    let explained: Value = serde_json::from_str(&site.admin("/v1/explain?service=shop").await.1).unwrap();
    let expected = serde_json::json!({"revision_id": "sha1:aa", "upstream_unreachable_since": "1970-01-01T00:01:00Z"});
    assert_eq!(explained["seen"], expected);
    assert!(explained["why"].as_str().unwrap().contains("does not reach Git"), "{explained}");
    assert_eq!(site.origin.requests("service").len(), 0);
}

#[tokio::test]
async fn made_up_digests_of_an_absent_service_reach_no_origin() {
    let site = Site::following(|_| {}, |_| {}).await;
    let mut client = site.client("h2").await;
    for seed in 0..100 {
        let path = format!("{TARBALL}s/{}", Tarball::random(seed, 10).digest());
        assert_eq!(client.get(&path, &[]).await.status, 404);
    }
    assert_eq!((site.origin.requests("service").len(), site.origin.requests("version").len()), (1, 0));
}

#[tokio::test]
async fn an_unavailable_origin_does_not_make_a_service_absent() {
    let mut site = Site::prepare().await;
    let second = site.second_origin().await;
    always_revalidating(&mut site.config);
    site.start_edge().await;
    let tarball = Tarball::random(1, 1000);
    site.origin.publish("shop", 7, 1, &tarball);
    let no_agent_yet = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "any", "Any", "Nobody owns the repository yet.");
    second.answer_descriptors_with(Some(no_agent_yet));
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    let past = format!("{TARBALL}s/{}", Tarball::random(2, 1000).digest());
    for path in [past.as_str(), "/v1/services/unknown/tarball"] {
        assert_eq!(client.get(path, &[]).await.status, 503, "{path}");
    }
    second.answer_descriptors_with(None);
    site.until("now it can", async || client.get(&past, &[]).await.status == 404).await;
}

#[tokio::test]
async fn a_full_disk_delays_no_version_and_is_reported() {
    let mut site = Site::prepare().await;
    let dir = site.config.cache.dir.clone();
    let Some(_mount) = Mount::tmpfs(&dir, "size=8m") else { return };
    site.origin.serve_events();
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000));
    site.start_edge().await;
    let mut client = site.client("h2").await;
    let generation = async |client: &mut crate::client::Client| {
        client.head(TARBALL, &[]).await.headers.get("weir-generation").map(|value| value.to_str().unwrap().to_owned())
    };
    site.until("it is served", async || generation(&mut client).await.as_deref() == Some("7")).await;
    // Nothing more fits, not even a record.
    let mut filler = fs::File::create(dir.join("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[7; 512]).is_ok() {}
    for generation_pushed in 8..12 {
        site.origin.push("shop", generation_pushed, 1, &Tarball::random(generation_pushed, 1000));
        site.origin.push(&format!("new-{generation_pushed}"), 1, 1, &Tarball::random(generation_pushed, 1000));
    }
    site.until("the newest is served", async || generation(&mut client).await.as_deref() == Some("11")).await;
    assert_eq!(client.head("/v1/services/new-11/tarball", &[]).await.status, 200);
    site.until("the failure is seen", async || site.metric("weir_edge_catalog_writable", &[]) == 0.0).await;
    let (status, reasons) = site.admin("/readyz").await;
    assert!(status == 200 && reasons.contains("the catalog cannot be written"), "{status} {reasons}");
    fs::remove_file(dir.join("filler")).unwrap();
    drop(filler);
    // Nothing changes any more: the periodic flush alone finds that the disk works again.
    site.until("it is written", async || site.metric("weir_edge_catalog_writable", &[]) == 1.0).await;
    site.cut_edge().await;
    site.origin.go_down().await;
    site.start_edge().await;
    let mut client = site.client("h2").await;
    assert_eq!(generation(&mut client).await.as_deref(), Some("11"), "it outlives a crash");
    site.cut_edge().await;
}

#[tokio::test]
async fn a_damaged_catalog_is_refilled_and_prevents_no_start() {
    let mut site = Site::with(|config| config.freshness.fresh = Duration::from_secs(3600)).await;
    for number in 0..20 {
        site.origin.publish(&format!("s{number}"), 7, 1, &Tarball::random(number, 1000));
        site.client("h2").await.head(&format!("/v1/services/s{number}/tarball"), &[]).await;
    }
    site.stop_edge().await;
    site.start_edge().await;
    site.client("h2").await.head("/v1/services/s0/tarball", &[]).await;
    assert_eq!(site.origin.requests("service").len(), 20, "what was fresh is fresh after a restart");
    site.stop_edge().await;
    site.origin.go_down().await;
    let path = site.config.cache.dir.join("catalog.log");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 100].fill(0xa5);
    fs::write(&path, &bytes).unwrap();
    site.start_edge().await;
    assert!(site.metric("weir_edge_catalog_damaged_records_total", &[]) >= 1.0);
    let mut client = site.client("h2").await;
    let mut served = 0;
    for number in 0..20 {
        served += u32::from(client.head(&format!("/v1/services/s{number}/tarball"), &[]).await.status == 200);
    }
    assert!((15..20).contains(&served), "{served}: what was readable is served while the origin is away");
    site.origin.go_up().await;
    for number in 0..20 {
        let path = format!("/v1/services/s{number}/tarball");
        site.until("it is served again", async || client.head(&path, &[]).await.status == 200).await;
    }
    // The line that is damaged may have been about any of them.
    site.until("all are queried again", async || {
        for number in 0..20 {
            client.head(&format!("/v1/services/s{number}/tarball"), &[]).await;
        }
        site.origin.requests("service").len() >= 40
    })
    .await;
}

#[tokio::test]
async fn the_catalog_is_bounded_and_evicted_services_keep_their_generation() {
    let site = Site::with(|config| config.cache.service_bytes = ByteSize::mib(1)).await;
    let tarball = Tarball::random(1, 1000);
    let mut client = site.client("h2").await;
    for number in 0..600 {
        site.origin.publish(&format!("s{number}"), 7, 1, &tarball);
        assert_eq!(client.head(&format!("/v1/services/s{number}/tarball"), &[]).await.status, 200);
    }
    assert!(site.in_use("service_bytes") <= f64::from(1 << 20));
    let evicted = site.metric("weir_edge_catalog_evictions_total", &[("reason", "capacity")]);
    assert!(evicted > 0.0 && evicted == site.in_use("service_floors"), "{evicted}");
    site.origin.publish("s0", 6, 1, &tarball);
    let reply = client.head("/v1/services/s0/tarball", &[]).await;
    assert_eq!((reply.status, site.metric("weir_edge_generation_regressions_total", &[])), (502, 1.0));
}

#[tokio::test]
async fn made_up_digests_of_one_service_leave_room_for_the_others() {
    let site = Site::with(|config| config.freshness.fresh = Duration::from_secs(3600)).await;
    for service in ["shop", "docs"] {
        site.origin.publish(service, 7, 1, &Tarball::random(1, 1000));
    }
    let mut client = site.client("h2").await;
    for service in ["shop", "docs"] {
        assert_eq!(client.head(&format!("/v1/services/{service}/tarball"), &[]).await.status, 200);
    }
    let gate = site.origin.hold_descriptors();
    let made_up =
        |service: &str, seed| format!("/v1/services/{service}/tarballs/{}", Tarball::random(seed, 10).digest());
    let waiting: Vec<_> = (100..108)
        .map(|seed| {
            let (mut client, path) = (client.clone(), made_up("shop", seed));
            tokio::spawn(async move { client.get(&path, &[]).await.status })
        })
        .collect();
    site.until("eight are under way", async || site.origin.requests("version").len() == 8).await;
    assert_eq!(client.get(&made_up("shop", 108), &[]).await.status, 503);
    assert_eq!(site.origin.requests("version").len(), 8);
    let mut other = client.clone();
    let path = made_up("docs", 108);
    let docs = tokio::spawn(async move { other.get(&path, &[]).await.status });
    site.until("another service's is queried", async || site.origin.requests("version").len() == 9).await;
    gate.add_permits(100);
    for status in waiting.into_iter().chain([docs]) {
        assert_eq!(status.await.unwrap(), 404);
    }
}
