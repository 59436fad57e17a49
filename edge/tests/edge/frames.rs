//! The manifest of a version, which tells a client the frames of its zstd body.

use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::Manifest;

use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::{FRAME, Tarball};

fn path(tarball: &Tarball) -> String {
    format!("/v1/services/shop/tarballs/{}/frames", tarball.digest())
}

#[tokio::test]
async fn the_manifest_of_a_version_names_the_ranges_of_its_body() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 3 * FRAME + 7);
    site.origin.publish("shop", 7, 1, &tarball);
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let reply = client.get(&path(&tarball), &[]).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"), "{version}");
        assert_eq!(reply.header("etag"), format!("\"{}\"", tarball.named()), "it is named by its bytes");
        assert_eq!(reply.header("cache-control"), "no-cache", "a body that is built again has another one");
        assert_eq!(ObjectDigest::of(reply.bytes()), tarball.named());
        let manifest = Manifest::parse(reply.bytes()).unwrap();
        let names: Vec<_> = manifest.frames().iter().map(|frame| frame.digest).collect();
        assert_eq!((names, manifest.size()), (tarball.frames(), tarball.zstd.len() as u64));

        let head = client.head(&path(&tarball), &[]).await;
        assert_eq!((head.status, head.header("content-length")), (200, reply.bytes().len().to_string().as_str()));
        let cached = client.get(&path(&tarball), &[("if-none-match", reply.header("etag"))]).await;
        assert_eq!(cached.status, 304);
        let other = client.get(&path(&tarball), &[("if-match", "\"other\"")]).await;
        assert_eq!(other.status, 412);
    }
    assert_eq!(site.origin.requests("object").len(), 1, "it is cached like every object");
    // The second frame alone, as a range of the body.
    let mut client = site.client("h2").await;
    let whole = client.head(TARBALL, &[ZSTD]).await;
    let manifest = Manifest::parse(client.get(&path(&tarball), &[]).await.bytes()).unwrap();
    let start = manifest.frames()[0].size;
    let range = format!("bytes={start}-{}", start + manifest.frames()[1].size - 1);
    let frame = client.get(TARBALL, &[ZSTD, ("range", &range), ("if-range", whole.header("etag"))]).await;
    assert_eq!((frame.status, ObjectDigest::of(frame.bytes())), (206, manifest.frames()[1].digest));
    let sent = |kind| site.metric("weir_edge_sent_bytes_total", &[("kind", kind)]);
    assert_eq!((sent("frames"), sent("full")), (manifest.frames()[1].size as f64, 0.0));
    let tarballs = |site: &Site| site.metric("weir_edge_tarballs_served_total", &[]);
    assert_eq!(tarballs(&site), 0.0, "a range is no tarball");
    client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(tarballs(&site), 1.0);
}

#[tokio::test]
async fn one_frame_and_an_unknown_digest_have_no_manifest() {
    let site = Site::start().await;
    let (one, unknown) = (Tarball::random(1, 1000), Tarball::random(2, 3 * FRAME));
    site.origin.publish("shop", 7, 1, &one);
    let mut client = site.client("h2").await;
    for tarball in [&one, &unknown] {
        let reply = client.get(&path(tarball), &[]).await;
        assert_eq!((reply.status, reply.header("content-type")), (404, "application/problem+json"));
        let says_one_frame = String::from_utf8_lossy(reply.bytes()).contains("one frame");
        assert_eq!(says_one_frame, tarball.digest() == one.digest());
    }
    let malformed = client.get("/v1/services/shop/tarballs/b3-0/frames", &[]).await;
    assert_eq!(malformed.status, 400);
    site.origin.go_down().await;
    let gone = client.get(&path(&one), &[]).await;
    assert_eq!(gone.status, 404, "the descriptor alone says so");
}
