use crate::site::{Site, TARBALL, ZSTD, a_moment, always_revalidating};
use crate::test_origin::Tarball;

#[tokio::test]
async fn an_older_generation_is_rejected_after_a_restart_too() {
    let mut site = Site::with(always_revalidating).await;
    let (new, old) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("shop", 9, 2, &new);
    site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    for (generation, revision, tarball) in [(8, 5, &old), (9, 1, &new)] {
        site.origin.publish("shop", generation, revision, tarball);
        a_moment().await;
        let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
        assert_eq!((reply.bytes(), reply.header("weir-generation")), (&new.zstd, "9"));
        assert!(reply.header("cache-status").starts_with("edge-1; hit; ttl=-"), "{}", reply.header("cache-status"));
        assert_eq!(site.metric("weir_edge_generation_regressions_total", &[]), 1.0);
        assert_eq!(site.metric("weir_edge_stale_served_total", &[("reason", "regressed")]), 1.0);
        site.cut_edge().await;
        site.start_edge().await;
    }
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("weir-generation")), (&new.zstd, "9"));
    site.origin.publish("shop", 10, 1, &old);
    let mut client = site.client("h2").await;
    site.until("a higher one is taken", async || client.get(TARBALL, &[ZSTD]).await.header("weir-generation") == "10")
        .await;
}

#[tokio::test]
async fn a_removed_service_is_not_served_and_its_generation_is_stored() {
    let mut site = Site::with(always_revalidating).await;
    let tarball = Tarball::random(1, 1000);
    site.origin.publish("shop", 9, 1, &tarball);
    let immutable = format!("/v1/services/shop/tarballs/{}", tarball.digest());
    let mut client = site.client("h2").await;
    assert_eq!(client.get(&immutable, &[]).await.status, 200);
    assert_eq!(client.get(TARBALL, &[]).await.status, 200);
    site.origin.withdraw("shop");
    a_moment().await;
    assert_eq!(client.get(TARBALL, &[]).await.status, 404);
    assert_eq!(client.get(&immutable, &[]).await.status, 404);
    assert_eq!(client.get("/v1/services/shop", &[]).await.status, 404);

    site.cut_edge().await;
    // What it published before may not come back under its old number.
    site.origin.publish("shop", 8, 1, &tarball);
    site.start_edge().await;
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[]).await.status, 404);
    assert_eq!(site.metric("weir_edge_generation_regressions_total", &[]), 1.0);
    site.origin.publish("shop", 10, 1, &tarball);
    site.until("it is back", async || client.get(TARBALL, &[]).await.status == 200).await;
    assert_eq!(client.get(&immutable, &[]).await.status, 200, "by its digest, too");
}

#[tokio::test]
async fn a_missing_object_revalidates_the_descriptor() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 50_000);
    site.origin.publish("shop", 9, 1, &tarball);
    let mut client = site.client("h2").await;
    client.head(TARBALL, &[]).await;
    // The same content, compressed again: another representation under the same publication.
    let again = Tarball::in_frames(tarball.tar.to_vec(), 20_000);
    assert_ne!(again.named(), tarball.named());
    site.origin.publish("shop", 9, 2, &again);
    site.origin.forget_object(&tarball);
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &again.zstd);
    assert_eq!((site.origin.requests("service").len(), site.origin.requests("object").len()), (2, 1 + 1 + 3));
    site.origin.publish("shop", 10, 1, &tarball);
    site.origin.forget_object(&tarball);
    let reply = client.get(&format!("/v1/services/shop/tarballs/{}", again.digest()), &[ZSTD]).await;
    assert_eq!(reply.bytes(), &again.zstd, "what is held needs no origin");
}
