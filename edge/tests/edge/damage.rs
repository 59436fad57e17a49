//! Wrong bytes: on disk, and from origins. They reach nobody.

use std::fs;
use std::path::Path;

use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::{FRAME, Fault, Tarball};

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn damaged(site: &Site) -> f64 {
    site.metric("weir_edge_verify_failures_total", &[("tier", "disk")])
}

#[tokio::test]
async fn a_flipped_bit_on_disk_is_found_by_no_cache() {
    let (site, tarball) = Site::serving(300_000).await;
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    flip(&site.object_files()[0]);
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd, "it is in memory, too");
    assert_eq!(damaged(&site), 0.0);
    let reply = client.get(TARBALL, &[ZSTD, ("cache-control", "no-cache")]).await;
    assert_eq!(reply.bytes(), &tarball.zstd);
    assert_eq!(damaged(&site), 1.0);
    assert_eq!(site.metric("weir_edge_evictions_total", &[("reason", "corrupt")]), 1.0);
    assert!(site.object_files().is_empty(), "and the file is gone");
}

#[tokio::test]
async fn damage_from_before_the_start_is_repaired_by_a_request() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("a bit turned", flip),
        ("it is short", |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1000).unwrap()),
        ("it is empty, as after a power cut", |path| fs::write(path, "").unwrap()),
        ("it is gone", |path| fs::remove_file(path).unwrap()),
    ];
    for (number, (what, damage)) in damages.into_iter().enumerate() {
        let mut site = Site::start().await;
        let tarball = Tarball::random(1, 5 * FRAME);
        site.origin.publish("shop", 7, 1, &tarball);
        site.client("h2").await.get(TARBALL, &[ZSTD]).await;
        site.settled().await;
        site.stop_edge().await;
        damage(&site.object_file(&tarball.frames()[3]));
        site.start_edge().await;
        let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
        assert!(reply.bytes() == &tarball.zstd, "{what}");
        assert_eq!(damaged(&site), if number < 3 { 1.0 } else { 0.0 }, "{what}");
        assert_eq!(site.origin.requests("object").len(), 6 + 1, "{what}: one frame is fetched again");
        site.settled().await;
        assert_eq!(site.object_files().len(), 6);
    }
}

#[tokio::test]
async fn a_vanished_file_is_fetched_again() {
    let (mut site, tarball) = Site::serving(300_000).await;
    site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    site.stop_edge().await;
    site.start_edge().await;
    site.until("it is counted", async || site.objects().await == 1).await;
    fs::remove_file(&site.object_files()[0]).unwrap();
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.bytes(), site.origin.requests("object").len()), (&tarball.zstd, 2));
    assert_eq!(site.metric("weir_edge_evictions_total", &[("reason", "vanished")]), 1.0);
}

#[tokio::test]
async fn wrong_bytes_of_the_origin_are_never_served() {
    let (site, tarball) = Site::serving(300_000).await;
    let mut client = site.client("h2").await;
    for (fault, failures) in [(Fault::Flip, 3.0), (Fault::Longer, 6.0)] {
        site.origin.faults([fault.clone(), fault.clone(), fault]);
        let reply = client.get(TARBALL, &[]).await;
        assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
        assert_eq!(site.metric("weir_edge_verify_failures_total", &[("tier", "origin")]), failures);
    }
    assert_eq!(site.metric("weir_edge_fills_total", &[("result", "corrupt")]), 2.0);
    site.settled().await;
    assert_eq!((site.object_files().len(), site.new_files()), (0, 0));
    assert_eq!(client.get(TARBALL, &[]).await.bytes(), &tarball.tar, "the next one is good");
}

#[tokio::test]
async fn a_permanently_missing_object_gets_a_problem_document() {
    let site = Site::start().await;
    site.origin.publish("lost", 7, 1, &Tarball::random(3, 1000));
    site.origin.faults([Fault::Missing, Fault::Missing]);
    let reply = site.client("h2").await.get("/v1/services/lost/tarball", &[]).await;
    assert_eq!((reply.status, reply.problem()["retryable"].as_bool()), (503, Some(true)));
}
