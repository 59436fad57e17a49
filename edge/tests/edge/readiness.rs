use std::fs;

use serde_json::Value;

use crate::site::{Site, TARBALL, ZSTD, always_asking};
use crate::test_origin::Tarball;

#[tokio::test]
async fn an_edge_that_holds_something_stays_ready_and_says_what_is_wrong() {
    let mut site = Site::with(always_asking).await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 5000));
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(site.admin("/readyz").await, (200, "ready\n".to_owned()));
    site.origin.go_down().await;
    client.head("/v1/services/other/tarball", &[]).await;
    let (status, body) = site.admin("/readyz").await;
    assert_eq!(status, 200);
    assert!(body.starts_with("ready\ndegraded: ") && body.contains("cannot be reached"), "{body}");
    let status: Value = serde_json::from_str(&site.admin("/status").await.1).unwrap();
    assert_eq!((status["ready"].as_bool(), status["reasons"].as_array().unwrap().len()), (Some(true), 1));
    site.origin.go_up().await;
    site.until("it finds the origin again", async || site.admin("/readyz").await.1 == "ready\n").await;
}

#[tokio::test]
async fn a_disk_that_takes_no_blobs_is_told_until_it_does() {
    let site = Site::start().await;
    for number in 0..2 {
        site.origin.publish(&format!("s{number}"), 7, 1, &Tarball::random(number, 300_000));
    }
    let incoming = site.config.cache.dir.join("incoming");
    fs::remove_dir(&incoming).unwrap();
    let mut client = site.client("h2").await;
    client.get("/v1/services/s0/tarball", &[ZSTD]).await;
    let mut seen = (0, String::new());
    site.until("the trouble is told", async || {
        seen = site.admin("/readyz").await;
        seen.1.contains("degraded: the disk did not take the last blob: ")
    })
    .await;
    assert_eq!(seen.0, 200, "what is held, and what comes past the disk, is served");
    fs::create_dir(&incoming).unwrap();
    assert_eq!(client.get("/v1/services/s1/tarball", &[ZSTD]).await.status, 200);
    site.until("it is over", async || site.admin("/readyz").await == (200, "ready\n".to_owned())).await;
}

#[tokio::test]
async fn status_lists_one_service_or_those_that_follow() {
    let site = Site::start().await;
    let mut client = site.client("h2").await;
    for number in 0..3 {
        site.origin.publish(&format!("s{number}"), 7, 1, &Tarball::random(number, 5000));
        client.head(&format!("/v1/services/s{number}/tarball"), &[]).await;
    }
    let listed = async |query: &str| {
        let (code, body) = site.admin(&format!("/status{query}")).await;
        let status: Value = serde_json::from_str(&body).unwrap();
        let names: Vec<String> = status["services"]
            .as_array()
            .map(|all| all.iter().map(|one| one["service"].as_str().unwrap().to_owned()).collect())
            .unwrap_or_default();
        (code, names.join(" "))
    };
    assert_eq!(listed("").await, (200, "s0 s1 s2".to_owned()));
    assert_eq!(listed("?service=s1").await, (200, "s1".to_owned()));
    assert_eq!(listed("?after=s0").await, (200, "s1 s2".to_owned()));
    assert_eq!(listed("?page=2").await.0, 400);
    let (_, body) = site.admin("/status?service=s1").await;
    let status: Value = serde_json::from_str(&body).unwrap();
    let form = &status["services"][0]["representations"][0];
    assert_eq!((form["encoding"].as_str(), form["held"].is_null()), (Some("zstd"), true), "no body was asked for");
}
