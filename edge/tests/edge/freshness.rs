use std::time::Duration;

use crate::site::{Site, TARBALL, ZSTD, a_moment, always_revalidating};
use crate::test_origin::Tarball;

#[tokio::test]
async fn a_thousand_polls_are_304_and_the_origin_sees_none() {
    let site = Site::with(|config| config.freshness.fresh = Duration::from_secs(3600)).await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000));
    let mut client = site.client("h2").await;
    let tag = client.get(TARBALL, &[ZSTD]).await.header("etag").to_owned();
    let before = site.origin.requests("service").len() + site.origin.requests("object").len();
    assert_eq!(before, 2);
    for _ in 0..1000 {
        assert_eq!(client.head(TARBALL, &[ZSTD, ("if-none-match", &tag)]).await.status, 304);
    }
    assert_eq!(site.origin.requests("service").len() + site.origin.requests("object").len(), before);
    let polls = [("route", "tarball"), ("method", "HEAD"), ("cache", "hit"), ("status", "304")];
    assert_eq!(site.metric("weir_edge_requests_total", &polls), 1000.0);
}

#[tokio::test]
async fn a_stale_version_is_served_and_revalidated_in_the_background() {
    let site = Site::with(|config| {
        config.freshness.fresh = Duration::ZERO;
        config.freshness.stale_while_revalidate = Duration::from_secs(3600);
    })
    .await;
    let (old, new) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("shop", 7, 1, &old);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    a_moment().await;
    site.origin.publish("shop", 8, 1, &new);
    let gate = site.origin.hold_descriptors();
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &old.zstd);
    assert!(reply.header("cache-status").starts_with("edge-1; hit; ttl=-"), "{}", reply.header("cache-status"));
    assert_eq!(site.metric("weir_edge_stale_served_total", &[("reason", "revalidating")]), 1.0);
    gate.add_permits(100);
    let mut client = site.client("h2").await;
    site.until("the new version is served", async || client.get(TARBALL, &[ZSTD]).await.bytes() == &new.zstd).await;
}

#[tokio::test]
async fn a_response_that_waited_for_the_origin_has_its_cache_status() {
    let site = Site::with(always_revalidating).await;
    let (old, new) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("shop", 7, 1, &old);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    a_moment().await;
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("cache-status")), (&old.zstd, "edge-1; fwd=stale; fwd-status=304"));
    a_moment().await;
    site.origin.publish("shop", 8, 1, &new);
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &new.zstd);
    assert_eq!(reply.header("cache-status"), "edge-1; fwd=stale; fwd-status=200; stored");
    assert_eq!(reply.header("weir-generation"), "8");
}

#[tokio::test]
async fn a_request_waits_for_a_slow_origin_up_to_the_limit() {
    let site = Site::with(|config| {
        always_revalidating(config);
        config.freshness.wait = Duration::from_millis(50);
    })
    .await;
    let tarball = Tarball::random(1, 1000);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    a_moment().await;
    let gate = site.origin.hold_descriptors();
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &tarball.zstd);
    assert!(reply.header("cache-status").starts_with("edge-1; hit; ttl=-"), "{}", reply.header("cache-status"));
    assert_eq!(site.metric("weir_edge_stale_served_total", &[("reason", "origin_slow")]), 1.0);
    gate.add_permits(100);
}

#[tokio::test]
async fn no_cache_queries_the_origin_at_most_once_a_second() {
    let site = Site::with(|config| config.freshness.fresh = Duration::from_secs(3600)).await;
    let (old, new) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("shop", 7, 1, &old);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    site.origin.publish("shop", 8, 1, &new);
    let forced = [ZSTD, ("cache-control", "no-cache")];
    // It was queried just now.
    assert_eq!(client.get(TARBALL, &forced).await.bytes(), &old.zstd);
    assert_eq!(site.origin.requests("service").len(), 1);
    site.until("the origin is queried again", async || {
        let reply = client.get(TARBALL, &forced).await;
        let requests = reply.header("cache-status") == "edge-1; fwd=request; fwd-status=200; stored";
        assert_eq!(reply.bytes() == &new.zstd, requests);
        requests
    })
    .await;
    assert_eq!(site.origin.requests("service").len(), 2);
    // A conditional request is none, and neither is a HEAD.
    let tag = client.head(TARBALL, &[ZSTD, ("cache-control", "no-cache")]).await.header("etag").to_owned();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    client.head(TARBALL, &forced).await;
    client.get(TARBALL, &[ZSTD, ("cache-control", "no-cache"), ("if-none-match", &tag)]).await;
    assert_eq!(site.origin.requests("service").len(), 2);
    site.origin.go_down().await;
    let reply = client.get(TARBALL, &forced).await;
    assert_eq!(reply.bytes(), &new.zstd);
    assert!(reply.header("cache-status").starts_with("edge-1; hit; ttl=-"), "{}", reply.header("cache-status"));
}

#[tokio::test]
async fn no_cache_requests_share_the_query_in_flight() {
    let site = Site::with(|config| config.freshness.fresh = Duration::from_secs(3600)).await;
    let (old, new) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("shop", 7, 1, &old);
    site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    site.origin.publish("shop", 8, 1, &new);
    let gate = site.origin.hold_descriptors();
    let mut refreshes = Vec::new();
    for number in 0..10 {
        let mut client = site.client(["h1", "h2", "h3"][number % 3]).await;
        let forced = [ZSTD, ("cache-control", "max-age=0, No-Cache")];
        refreshes.push(tokio::spawn(async move { client.get(TARBALL, &forced).await }));
    }
    site.until("all wait for one", async || site.metric("weir_edge_queries_collapsed_total", &[]) == 9.0).await;
    gate.add_permits(100);
    for refresh in refreshes {
        assert_eq!(refresh.await.unwrap().bytes(), &new.zstd);
    }
    assert_eq!(site.origin.requests("service").len(), 2);
}
