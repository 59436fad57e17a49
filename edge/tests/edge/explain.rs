use serde_json::{Value, json};

use crate::client::Client;
use crate::site::{Site, TARBALL, ZSTD, a_moment, always_revalidating};
use crate::test_origin::Tarball;

async fn explained(site: &Site, query: &str) -> Value {
    let (status, body) = site.admin(&format!("/v1/explain?{query}")).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn explain_describes_cached_versions_without_side_effects() {
    let site = Site::with(always_revalidating).await;
    let (past, current) = (Tarball::random(1, 5000), Tarball::random(2, 300_000));
    site.origin.publish("shop", 6, 1, &past);
    site.origin.publish("shop", 7, 1, &current);
    let (status, unknown) = site.admin("/v1/explain?service=shop").await;
    assert!(status == 404 && unknown.contains("no-such-service") && unknown.contains("`shop`"), "{status} {unknown}");

    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    client.head(&format!("/v1/services/shop/tarballs/{}", past.digest()), &[ZSTD]).await;
    site.settled().await;
    let before = site.origin.requests("service").len();
    a_moment().await;
    let held = explained(&site, "service=shop").await;
    assert_eq!((held["generation"].as_u64(), held["revision"].as_u64()), (Some(7), Some(1)));
    assert_eq!((&held["digest"], &held["freshness"]), (&current.digest().to_string().into(), &"revalidate".into()));
    assert_eq!(held["origin"].as_str(), site.origin.url().strip_prefix("https://"));
    assert_eq!(held["representations"], json!([{"encoding": "zstd", "held": "memory"}]));
    let past_one = explained(&site, &format!("service=shop&digest={}", past.digest())).await;
    assert_eq!((&past_one["held"], &past_one["commit"]), (&true.into(), &format!("c{:039x}", 6).into()));
    assert!(past_one["representations"][0]["held"].is_null(), "its body was never requested");
    let other = explained(&site, &format!("service=shop&digest={}", Tarball::random(3, 1).digest())).await;
    assert_eq!(other["held"], false);
    assert_eq!(site.origin.requests("service").len(), before, "no origin was queried");

    // An origin that goes back, and one that is down.
    site.origin.publish("shop", 5, 1, &past);
    client.head(TARBALL, &[ZSTD]).await;
    assert_eq!(explained(&site, "service=shop").await["refused_generation"].as_u64(), Some(5));
    let (_, ready) = site.admin("/readyz").await;
    assert!(ready.contains("older generation of shop than was seen"), "{ready}");
    site.origin.go_down().await;
    site.until("the edge sees that it is down", async || {
        client.head("/v1/services/other/tarball", &[]).await;
        explained(&site, "service=shop").await["why"].as_str().unwrap().contains("the origin is down")
    })
    .await;
    for (query, expected) in [("", 400), ("service=A", 400), ("service=a&digest=b3-0", 400), ("servise=a", 400)] {
        assert_eq!(site.admin(&format!("/v1/explain?{query}")).await.0, expected, "{query}");
    }
}

#[tokio::test]
async fn the_admin_listener_serves_tls() {
    let site = Site::with(|config| config.admin.tls = true).await;
    let mut client = Client::connect("h1", site.edge().admin_address().unwrap(), site.pki()).await;
    assert_eq!(client.get("/status", &[]).await.status, 200);
}
