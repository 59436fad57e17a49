use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::Semaphore;
use weir_shared::problem::Problem;

use crate::site::{Site, TARBALL, ZSTD, a_moment, always_asking};
use crate::test_origin::{Gzip, Tarball};

const GZIP: (&str, &str) = ("accept-encoding", "gzip");
const GZIP_ALONE: (&str, &str) = ("accept-encoding", "gzip, identity;q=0");

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut tar).unwrap();
    tar
}

fn compressible() -> Tarball {
    Tarball::in_frames(b"the same again and again ".repeat(20_000), 1 << 20)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gzip_is_made_once_whoever_asks_and_is_kept() {
    let mut site = Site::with(|config| config.freshness.fresh = Duration::from_secs(600)).await;
    let tarball = compressible();
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = Arc::new(Semaphore::new(0));
    site.origin.gzip(Gzip::Gated(gate.clone()));
    let mut requests = Vec::new();
    for version in ["h1", "h2", "h3", "h2"] {
        let mut client = site.client(version).await;
        requests.push(tokio::spawn(async move { client.get(TARBALL, &[GZIP]).await }));
    }
    site.until("the origin is asked", async || !site.origin.asked("gzip").is_empty()).await;
    gate.add_permits(100);
    for request in requests {
        let reply = request.await.unwrap();
        assert_eq!((reply.status, reply.header("content-encoding")), (200, "gzip"));
        assert_eq!(gunzip(reply.bytes()), tarball.tar);
        assert!(reply.header("etag").contains("+gzip."), "{}", reply.header("etag"));
        assert_eq!(reply.header("content-length"), reply.bytes().len().to_string());
        assert_eq!(reply.header("accept-ranges"), "bytes");
    }
    assert_eq!(site.origin.asked("gzip").len(), 1);
    assert_eq!(site.metric("weir_edge_gzips_total", &[("result", "made")]), 1.0);

    // From now on it is a representation like any other, also for another process in the same place.
    site.stop_edge().await;
    site.start_edge().await;
    let mut client = site.client("h2").await;
    let whole = client.get(TARBALL, &[GZIP]).await;
    assert_eq!(whole.header("cache-status"), "edge-1; hit");
    let head = client.head(TARBALL, &[GZIP]).await;
    for name in ["etag", "content-length", "content-encoding", "weir-digest"] {
        assert_eq!(head.header(name), whole.header(name), "{name}");
    }
    let part = client.get(TARBALL, &[GZIP, ("range", "bytes=5-99"), ("if-range", whole.header("etag"))]).await;
    assert_eq!((part.status, &part.bytes()[..]), (206, &whole.bytes()[5..100]));
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    assert_eq!(site.origin.asked("gzip").len(), 1);
}

#[tokio::test]
async fn head_and_what_is_held_have_nothing_made() {
    let site = Site::start().await;
    let tarball = compressible();
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.gzip(Gzip::Made);
    let tag = format!("\"{}\"", tarball.digest());
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let head = client.head(TARBALL, &[GZIP]).await;
        assert_eq!((head.status, head.header("content-encoding")), (200, "gzip"), "{version}");
        assert_eq!(head.header("weir-digest"), tarball.digest().to_string());
        for name in ["etag", "content-length"] {
            assert!(!head.headers.contains_key(name), "{version}: nobody knows the {name} yet: {head:?}");
        }
        for method in ["HEAD", "GET"] {
            let held = client.send(method, TARBALL, &[GZIP, ("if-none-match", &tag)]).await;
            assert_eq!((held.status, held.header("etag")), (304, &*tag), "{version} {method}");
        }
        assert_eq!(client.head(TARBALL, &[GZIP, ("if-match", "\"x\"")]).await.status, 412);
    }
    // Whoever takes something better gets that.
    let mut client = site.client("h2").await;
    for accept in ["gzip, zstd", "*", "identity"] {
        assert_ne!(client.get(TARBALL, &[("accept-encoding", accept)]).await.header("content-encoding"), "gzip");
    }
    assert!(site.origin.asked("gzip").is_empty());
}

#[tokio::test]
async fn an_origin_that_cannot_leaves_the_next_acceptable_coding() {
    let mut site = Site::with(|config| config.freshness.fresh = Duration::from_secs(600)).await;
    let tarball = compressible();
    let busy = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Busy", "Two forms are being made.");
    let old = Problem::method_not_allowed();
    let fault = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "A fault", "Its log says which.");
    for (name, gzip, words) in [
        ("unknown", Gzip::Unknown, "does not make it"),
        ("old", Gzip::Refused(old), "does not make it"),
        ("busy", Gzip::Refused(busy), "Two forms are being made."),
        ("fault", Gzip::Refused(fault), "status 500"),
    ] {
        site.origin.publish(name, 7, 1, &tarball);
        site.origin.gzip(gzip);
        let path = format!("/v1/services/{name}/tarball");
        let mut client = site.client("h2").await;
        let reply = client.get(&path, &[GZIP]).await;
        assert_eq!((reply.status, reply.header("content-encoding")), (200, ""), "{name}");
        assert_eq!(reply.bytes(), &tarball.tar);
        let before = site.origin.asked("gzip").len();
        let reply = client.get(&path, &[GZIP_ALONE]).await;
        assert_eq!((reply.status, reply.header("retry-after")), (503, "5"), "{name}");
        let detail = reply.problem()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(words), "{name}: {detail}");
        assert_eq!(site.origin.asked("gzip").len(), before, "{name}: it is not asked again at once");
    }
    assert_eq!(site.metric("weir_edge_gzips_total", &[("result", "unsupported")]), 2.0);
    assert_eq!(site.metric("weir_edge_gzips_total", &[("result", "failed")]), 2.0);

    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    site.origin.go_down().await;
    assert_eq!(client.get(TARBALL, &[GZIP]).await.bytes(), &tarball.tar, "what is held is served");
    assert_eq!(client.get(TARBALL, &[GZIP_ALONE]).await.status, 503);
    site.origin.go_up().await;
    let nothing = client.get(TARBALL, &[("accept-encoding", "br, identity;q=0")]).await;
    assert_eq!(nothing.status, 406);
}

#[tokio::test]
async fn a_past_version_can_be_had_as_gzip_and_the_current_one_stays() {
    let site = Site::with(always_asking).await;
    let (past, current) = (compressible(), Tarball::random(2, 1000));
    site.origin.gzip(Gzip::Made);
    site.origin.publish("shop", 7, 1, &past);
    site.origin.publish("shop", 8, 1, &current);
    let mut client = site.client("h2").await;
    assert_eq!(client.head(TARBALL, &[ZSTD]).await.header("weir-generation"), "8");
    let path = format!("/v1/services/shop/tarballs/{}", past.digest());
    for _ in 0..2 {
        let reply = client.get(&path, &[GZIP]).await;
        assert_eq!((reply.status, reply.header("content-encoding")), (200, "gzip"));
        assert_eq!(gunzip(reply.bytes()), past.tar);
    }
    assert_eq!((site.origin.asked("gzip").len(), site.origin.asked("version").len()), (1, 1));
    a_moment().await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &current.zstd);
    assert_eq!(site.metric("weir_edge_generation_regressions_total", &[]), 0.0);
}
