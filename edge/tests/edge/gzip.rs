//! gzip: stored when the origin has it, else made on the way.

use std::io::Read;

use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::{FRAME, Tarball};

const GZIP: (&str, &str) = ("accept-encoding", "gzip");

fn decoded(bytes: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut tar).unwrap();
    tar
}

fn text() -> Vec<u8> {
    (0..300_000u32).flat_map(|n| format!("line {n}\n").into_bytes()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gzip_is_made_for_clients_that_accept_nothing_better() {
    let site = Site::start().await;
    let tarball = Tarball::in_frames(text(), FRAME);
    site.origin.publish("shop", 7, 1, &tarball);
    let tag = format!("W/\"{}+gzip\"", tarball.digest());
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let head = client.head(TARBALL, &[GZIP]).await;
        // A range of what is not the same bytes each time is not served.
        let reply = client.get(TARBALL, &[GZIP, ("range", "bytes=1-2")]).await;
        assert_eq!(decoded(reply.bytes()), tarball.tar, "{version}");
        for reply in [&head, &reply] {
            assert_eq!(
                (reply.status, reply.header("content-encoding"), reply.header("etag")),
                (200, "gzip", tag.as_str())
            );
            assert_eq!((reply.header("accept-ranges"), reply.header("content-length")), ("none", ""), "{version}");
        }
        let better = client.get(TARBALL, &[("accept-encoding", "gzip, zstd")]).await;
        assert_eq!(better.header("content-encoding"), "zstd");
        let reply = client.get(TARBALL, &[GZIP, ("if-none-match", &tag)]).await;
        assert_eq!((reply.status, reply.header("etag")), (304, tag.as_str()));
        assert_eq!(client.get(TARBALL, &[GZIP, ("if-match", &tag)]).await.status, 412, "it is a weak tag");
    }
    assert_eq!(site.in_use("gzip_encoders"), 0.0);
}

#[tokio::test]
async fn stored_gzip_is_served_unchanged() {
    let site = Site::start().await;
    let tarball = Tarball::in_frames(text(), FRAME).and_gzip();
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    let reply = client.get(TARBALL, &[GZIP]).await;
    let gzip = tarball.gzip();
    assert_eq!((reply.bytes(), decoded(&gzip)), (&gzip, tarball.tar.to_vec()));
    assert_eq!(
        (reply.header("content-length"), reply.header("accept-ranges")),
        (gzip.len().to_string().as_str(), "bytes")
    );
    assert!(reply.header("etag").starts_with(&format!("\"{}+gzip.", tarball.digest())));
    let part = client.get(TARBALL, &[GZIP, ("range", "bytes=100-199")]).await;
    assert_eq!((part.status, part.bytes()), (206, &gzip.slice(100..200)));
}

#[tokio::test]
async fn encoders_are_bounded_and_the_next_acceptable_coding_needs_none() {
    let site = Site::with(|config| config.cache.encoders = 1).await;
    let tarball = Tarball::random(1, 24 * FRAME);
    site.origin.publish("shop", 7, 1, &tarball);
    // Nobody reads it: its encoder stays.
    let slow = site.client("h1").await.begin("GET", TARBALL, &[GZIP]).await;
    assert_eq!((site.in_use("gzip_encoders"), site.limit("gzip_encoders")), (1.0, 1.0));
    let mut client = site.client("h2").await;
    let reply = client.get(TARBALL, &[GZIP]).await;
    assert_eq!((reply.header("content-encoding"), reply.bytes() == &tarball.tar), ("", true), "identity");
    let reply = client.get(TARBALL, &[("accept-encoding", "gzip, identity;q=0")]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    assert_eq!(reply.problem()["type"], "urn:weir:problem:overloaded");
    assert!(client.get(TARBALL, &[ZSTD]).await.bytes() == &tarball.zstd, "which needs none");
    assert_eq!(client.head(TARBALL, &[GZIP]).await.header("content-encoding"), "gzip", "and neither does this");
    drop(slow);
    site.until("it is free", async || site.in_use("gzip_encoders") == 0.0).await;
    assert_eq!(decoded(client.get(TARBALL, &[GZIP]).await.bytes()), tarball.tar);
}
