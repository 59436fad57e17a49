use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::Tarball;

#[tokio::test]
async fn all_frames_are_decoded_for_identity() {
    let site = Site::start().await;
    let text: Vec<u8> = (0..500_000u32).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
    let tarball = Tarball::in_frames(text, 900_001);
    site.origin.publish("shop", 7, 1, &tarball);
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let reply = client.get(TARBALL, &[]).await;
        assert_eq!(reply.header("content-length"), tarball.tar.len().to_string());
        assert_eq!(reply.bytes(), &tarball.tar, "{version}");
    }
    assert_eq!(site.metric("weir_edge_sent_bytes_total", &[]), 3.0 * tarball.tar.len() as f64);
}

#[tokio::test]
async fn a_frame_that_decodes_to_another_length_never_ends_cleanly() {
    let site = Site::start().await;
    let honest = Tarball::random(1, 600_000);
    for (service, length) in [("short", 599_999), ("long", 600_001)] {
        let lying = honest.clone().with_tar(Tarball::random(2, length).tar);
        site.origin.publish(service, 7, 1, &lying);
        for version in ["h1", "h2", "h3"] {
            let mut client = site.client(version).await;
            let reply = client.get(&format!("/v1/services/{service}/tarball"), &[]).await;
            assert!(reply.body.is_err(), "{version} {service}");
            // As it is stored it is what its name says.
            let stored = client.get(&format!("/v1/services/{service}/tarball"), &[ZSTD]).await;
            assert_eq!(stored.bytes(), &honest.zstd);
        }
    }
}

#[tokio::test]
async fn decoders_are_counted_and_bounded() {
    let site = Site::with(|config| config.cache.decoders = 1).await;
    let tarball = Tarball::random(1, 24 << 20);
    site.origin.publish("shop", 7, 1, &tarball);
    // Nobody reads it: its decoder stays.
    let slow = site.client("h1").await.begin("GET", TARBALL, &[]).await;
    assert_eq!((site.in_use("decoders"), site.limit("decoders")), (1.0, 1.0));
    let mut client = site.client("h2").await;
    let reply = client.get(TARBALL, &[]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    assert_eq!(reply.problem()["type"], "urn:weir:problem:overloaded");
    assert!(client.get(TARBALL, &[ZSTD]).await.bytes() == &tarball.zstd, "which needs none");
    assert_eq!(client.head(TARBALL, &[]).await.status, 200, "and neither does this");
    drop(slow);
    site.until("the place is free", async || site.in_use("decoders") == 0.0).await;
    assert!(client.get(TARBALL, &[]).await.bytes() == &tarball.tar);
}
