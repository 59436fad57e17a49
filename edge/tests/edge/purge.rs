use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;
use weir_edge::config::Config;

use crate::site::{Site, TARBALL, ZSTD, ask_with};
use crate::test_origin::{Fault, Tarball};

const TOKEN: &str = "an-operators-token";

/// Fresh for so long that an edge does not revalidate by itself.
fn rarely_asking(config: &mut Config) {
    config.freshness.fresh = Duration::from_secs(600);
}

async fn start() -> Site {
    let mut site = Site::prepare().await;
    rarely_asking(&mut site.config);
    let file = site.pki().join("operator-token");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    site.config.admin.operator_token_file = Some(file);
    site.start_edge().await;
    site
}

async fn purge(site: &Site, order: &str) -> Value {
    let (status, body) = site.admin_request("POST", "/v1/purge", Some(TOKEN), order).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn counts(done: &Value) -> [u64; 3] {
    ["services", "objects", "bytes"].map(|name| done[name].as_u64().unwrap())
}

#[tokio::test]
async fn a_page_of_another_site_reaches_no_operator_request() {
    let site = start().await;
    let address = site.edge().admin_address().unwrap();
    let token = format!("authorization: Bearer {TOKEN}\r\n");
    let order = r#"{"service": "shop"}"#;
    for (method, path, headers, expected) in [
        ("POST", "/v1/purge", format!("host: {address}\r\n{token}origin: http://{address}\r\n"), 200),
        ("POST", "/v1/purge", format!("host: {address}\r\n{token}origin: http://evil.example\r\n"), 403),
        ("POST", "/v1/purge", format!("host: {address}\r\n{token}sec-fetch-site: cross-site\r\n"), 403),
        ("POST", "/v1/purge", format!("host: {address}\r\n{token}content-type: text/plain\r\n"), 415),
        ("GET", "/status", format!("host: {address}\r\n"), 200),
        // Its name was bound to this address: it is as far away as its name.
        ("GET", "/status", "host: evil.example\r\n".to_owned(), 401),
        ("GET", "/status", format!("host: evil.example\r\n{token}"), 200),
        ("GET", "/metrics", "host: evil.example\r\n".to_owned(), 403),
    ] {
        let (status, body) = ask_with(address, method, path, &headers, if method == "POST" { order } else { "" }).await;
        assert_eq!(status, expected, "{method} {path} {headers}: {body}");
    }
}

#[tokio::test]
async fn a_purge_requires_the_operator_token() {
    let order = r#"{"service": "shop"}"#;
    let site = Site::start().await;
    let (status, body) = site.admin_request("POST", "/v1/purge", Some(TOKEN), order).await;
    assert_eq!(status, 403);
    assert!(body.contains("operator_token_file") && body.contains("urn:weir:problem:no-operator-token"), "{body}");

    let site = start().await;
    for token in [None, Some("an-operators-tokeN"), Some("")] {
        let (status, body) = site.admin_request("POST", "/v1/purge", token, order).await;
        assert_eq!(status, 401, "{body}");
    }
    for (body, expected) in [
        ("", 400),
        ("{}", 400),
        (r#"{"soft": true}"#, 400),
        (r#"{"service": "A"}"#, 400),
        (r#"{"digest": "b3-0"}"#, 400),
        (r#"{"service": "a", "repository": "b"}"#, 400),
        (r#"{"service": "a", "sofd": true}"#, 400),
        (r#"{"service": "a"} more"#, 400),
        (&"x".repeat(5000), 413),
    ] {
        let (status, answer) = site.admin_request("POST", "/v1/purge", Some(TOKEN), body).await;
        assert_eq!(status, expected, "{body}: {answer}");
    }
    assert_eq!(site.admin_request("GET", "/v1/purge", Some(TOKEN), "").await.0, 405);
    assert_eq!(counts(&purge(&site, order).await), [0, 0, 0], "nothing is held, and that is no error");
    assert_eq!(site.metric("weir_edge_purges_total", &[("kind", "service"), ("mode", "hard")]), 1.0);
}

#[tokio::test]
async fn a_hard_purge_removes_a_service_and_keeps_its_generation() {
    let mut site = start().await;
    let (past, current) = (Tarball::random(1, 50_000), Tarball::random(2, 300_000));
    site.origin.publish("shop", 6, 1, &past);
    site.origin.publish("shop", 7, 1, &current);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    let past_path = format!("/v1/services/shop/tarballs/{}", past.digest());
    client.get(&past_path, &[ZSTD]).await;
    site.settled().await;
    let bytes = (past.zstd.len() + current.zstd.len()) as u64;
    let order = r#"{"service": "shop"}"#;
    assert_eq!(counts(&purge(&site, order).await), [1, 2, bytes]);
    assert!(site.object_files().is_empty());
    assert_eq!(site.metric("weir_edge_evictions_total", &[("reason", "purged")]), 2.0);
    assert_eq!(counts(&purge(&site, order).await), [1, 0, 0], "again is no error");

    let requests = |kind| site.origin.requests(kind).len();
    let before = (requests("service"), requests("version"), requests("object"));
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &current.zstd);
    assert_eq!(client.get(&past_path, &[ZSTD]).await.bytes(), &past.zstd);
    assert_eq!(
        (requests("service"), requests("version"), requests("object")),
        (before.0 + 1, before.1 + 1, before.2 + 2)
    );
    client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(requests("service"), before.0 + 1, "it is fresh again");

    // The highest generation is not forgotten, and an origin that is down costs no poll its answer.
    purge(&site, order).await;
    site.origin.publish("shop", 6, 2, &past);
    assert_eq!(client.head(TARBALL, &[ZSTD]).await.header("weir-generation"), "7");
    assert_eq!(site.metric("weir_edge_generation_regressions_total", &[]), 1.0);
    site.origin.go_down().await;
    let tag = format!("\"{}\"", current.digest());
    assert_eq!(client.head(TARBALL, &[("if-none-match", &tag)]).await.status, 304);
    site.origin.go_up().await;
}

#[tokio::test]
async fn a_hard_purge_removes_blobs_of_the_oci_form() {
    let site = start().await;
    let archive = Tarball::random(2, 50_000).tar;
    let tarball = Tarball::random(1, 1000).and_archive(&archive);
    site.origin.publish("shop", 7, 1, &tarball);
    let path = format!("/v2/weir/shop/blobs/sha256:{}", tarball.form().unwrap().blobs[0].sha256);
    assert_eq!(site.client("h2").await.get(&path, &[]).await.bytes(), &archive);
    site.settled().await;
    assert_eq!(counts(&purge(&site, r#"{"service": "shop"}"#).await), [1, 1, 50_000]);
    assert!(site.object_files().is_empty());
}

#[tokio::test]
async fn a_hard_purge_applies_to_fills_in_flight() {
    let site = start().await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults([Fault::Gate(gate.clone())]);
    let mut client = site.client("h2").await;
    let download = tokio::spawn(async move { client.get(TARBALL, &[ZSTD]).await });
    site.until("it is requested", async || site.origin.requests("object").len() == 1).await;
    assert_eq!(counts(&purge(&site, r#"{"service": "shop"}"#).await), [1, 0, 0]);
    gate.add_permits(1);
    assert_eq!(download.await.unwrap().bytes(), &tarball.zstd, "who waits gets it");
    site.until("it is gone", async || site.metric("weir_edge_evictions_total", &[("reason", "purged")]) == 1.0).await;
    assert!(site.object_files().is_empty());
}

#[tokio::test]
async fn a_soft_purge_removes_nothing_and_revalidates_everything() {
    let site = start().await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    let file = site.object_files().remove(0);
    let mut bytes = fs::read(&file).unwrap();
    bytes[20_000] ^= 1;
    fs::write(&file, bytes).unwrap();
    let done = purge(&site, r#"{"service": "shop", "soft": true}"#).await;
    assert_eq!(counts(&done), [1, 1, tarball.zstd.len() as u64]);
    assert_eq!(site.object_files().len(), 1);
    let before = site.origin.requests("service").len();
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &tarball.zstd, "the bit that was flipped behind its back is found");
    assert_eq!(site.metric("weir_edge_verify_failures_total", &[("tier", "disk")]), 1.0);
    site.until("the origin is queried in the background", async || site.origin.requests("service").len() > before)
        .await;
    site.until("it is fresh again", async || {
        client.get(TARBALL, &[ZSTD]).await.header("cache-status") == "edge-1; hit"
    })
    .await;
    assert_eq!(site.metric("weir_edge_purges_total", &[("mode", "soft")]), 1.0);
}

#[tokio::test]
async fn a_purge_of_an_absent_service_removes_its_negative_entry() {
    let site = start().await;
    let mut client = site.client("h2").await;
    assert_eq!(client.head(TARBALL, &[ZSTD]).await.status, 404);
    site.origin.publish("shop", 6, 1, &Tarball::random(1, 100));
    assert_eq!(counts(&purge(&site, r#"{"service": "shop"}"#).await)[0], 0);
    assert_eq!(client.head(TARBALL, &[ZSTD]).await.status, 200);
    assert_eq!(site.origin.requests("service").len(), 2);
}

#[tokio::test]
async fn a_digest_and_a_repository_can_be_purged() {
    let site = start().await;
    let tarballs: Vec<_> = (0..3).map(|seed| Tarball::random(seed, 300_000)).collect();
    let mut client = site.client("h2").await;
    let path = |number| format!("/v1/services/s{number}/tarball");
    for (number, tarball) in tarballs.iter().enumerate() {
        site.origin.publish(&format!("s{number}"), 7, 1, tarball);
        client.get(&path(number), &[ZSTD]).await;
    }
    site.settled().await;
    let size = |number: usize| tarballs[number].zstd.len() as u64;
    let of = |digest: String| format!(r#"{{"digest": "{digest}"}}"#);
    assert_eq!(counts(&purge(&site, &of(tarballs[0].digest().to_string())).await), [0, 1, size(0)]);
    assert_eq!(counts(&purge(&site, &of(tarballs[1].named().to_string())).await), [0, 1, size(1)]);
    assert_eq!(site.object_files().len(), 1);
    assert_eq!(counts(&purge(&site, r#"{"repository": "other"}"#).await), [0, 0, 0]);
    let before = site.origin.requests("service").len();
    assert_eq!(counts(&purge(&site, r#"{"repository": "shop"}"#).await), [3, 1, size(2)]);
    for (number, tarball) in tarballs.iter().enumerate() {
        assert_eq!(client.get(&path(number), &[ZSTD]).await.bytes(), &tarball.zstd);
    }
    assert_eq!(site.origin.requests("service").len(), before + 3);
}

#[tokio::test]
async fn beyond_loopback_the_admin_listener_requires_tls_and_the_token() {
    let mut site = Site::prepare().await;
    site.config.admin_listen = Some("0.0.0.0:0".parse().unwrap());
    let error = weir_edge::start(site.config.clone()).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("[admin]") && error.contains("allow_plain"), "{error}");
    let file = site.pki().join("operator-token");
    fs::write(&file, "short").unwrap();
    site.config.admin.operator_token_file = Some(file.clone());
    site.config.admin.allow_plain = true;
    let error = weir_edge::start(site.config.clone()).await.map(|_| ()).unwrap_err();
    assert!(format!("{error:#}").contains("operator_token_file"), "{error:#}");
    fs::write(&file, TOKEN).unwrap();
    site.start_edge().await;
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_ne!(site.admin(path).await.0, 401, "{path} is for probes and Prometheus");
    }
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000));
    assert_eq!(site.client("h2").await.head(TARBALL, &[]).await.status, 200);
    for path in ["/status", "/v1/explain?service=shop"] {
        assert_eq!(site.admin(path).await.0, 401, "{path}");
        assert_eq!(site.admin_request("GET", path, Some(TOKEN), "").await.0, 200, "{path}");
    }
}
