use std::fs;
use std::sync::Arc;

use bytesize::ByteSize;
use tokio::sync::Semaphore;

use crate::site::{Site, ZSTD};
use crate::test_origin::{Fault, Tarball};

fn path(number: u64) -> String {
    format!("/v1/services/s{number}/tarball")
}

fn bytes_on_disk(site: &Site) -> u64 {
    site.blob_files().iter().map(|file| fs::metadata(file).unwrap().len()).sum()
}

#[tokio::test]
async fn the_bound_holds_and_a_download_outlives_its_blob() {
    let mut site = Site::with(|config| config.cache.disk = ByteSize::mib(10)).await;
    let tarballs: Vec<_> = (0..9).map(|seed| Tarball::random(seed, 3 << 20)).collect();
    for (number, tarball) in (0..).zip(&tarballs) {
        site.origin.publish(&format!("s{number}"), 7, 1, tarball);
    }
    let mut client = site.client("h2").await;
    // Nobody reads its body: the client's window is small beside it.
    let slow = site.client("h1").await.begin("GET", &path(0), &[ZSTD]).await;
    for number in 1..9 {
        assert_eq!(client.get(&path(number), &[ZSTD]).await.bytes(), &tarballs[number as usize].zstd);
        assert!(bytes_on_disk(&site) <= 10 << 20);
    }
    site.settled().await;
    assert_eq!(bytes_on_disk(&site) as f64, site.metric("weir_edge_cache_bytes", &[]));
    assert_eq!(site.blob_files().len(), 3);
    assert_eq!(site.metric("weir_edge_evictions_total", &[("reason", "size")]), 6.0);
    assert_eq!(slow.finish().await.bytes(), &tarballs[0].zstd, "its file is gone and it ends well");

    // Those used last are there; the others are fetched again.
    let before = site.origin.asked("blob").len();
    client.get(&path(8), &[ZSTD]).await;
    assert_eq!(site.origin.asked("blob").len(), before);
    client.get(&path(0), &[ZSTD]).await;
    assert_eq!(site.origin.asked("blob").len(), before + 1);

    // A smaller limit is kept to from the start.
    site.stop_edge().await;
    site.config.cache.disk = ByteSize::mib(5);
    site.start_edge().await;
    assert!(bytes_on_disk(&site) <= 5 << 20);
}

#[tokio::test]
async fn a_blob_larger_than_the_cache_is_served_and_not_kept() {
    let site = Site::with(|config| config.cache.disk = ByteSize::mib(1)).await;
    let (large, small) = (Tarball::random(0, 3 << 20), Tarball::random(1, 1000));
    site.origin.publish("s0", 7, 1, &large);
    site.origin.publish("s1", 7, 1, &small);
    let mut client = site.client("h3").await;
    client.head(&path(0), &[ZSTD]).await;
    client.get(&path(1), &[ZSTD]).await;
    let reply = client.get(&path(0), &[ZSTD]).await;
    assert_eq!(reply.bytes(), &large.zstd);
    assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200");
    site.settled().await;
    assert_eq!((site.blob_files().len(), site.incoming_files()), (1, 0), "and the small one stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bound_holds_for_blobs_on_their_way_too() {
    let site = Site::with(|config| config.cache.disk = ByteSize::mib(10)).await;
    let tarballs: Vec<_> = (0..4).map(|seed| Tarball::random(seed, 6 << 20)).collect();
    let gate = Arc::new(Semaphore::new(0));
    let mut downloads = Vec::new();
    for (number, tarball) in (0..).zip(&tarballs) {
        site.origin.publish(&format!("s{number}"), 7, 1, tarball);
        site.origin.faults([Fault::Hold(gate.clone())]);
        let mut client = site.client("h2").await;
        downloads.push(tokio::spawn(async move { client.get(&path(number), &[ZSTD]).await }));
    }
    site.until("all wait", async || site.metric("weir_edge_fill_waiters", &[]) == 4.0).await;
    site.until("one is on its way", async || site.origin.asked("blob").len() == 1).await;
    for ended in 1..=4 {
        assert!(site.metric("weir_edge_cache_bytes", &[]) <= (10 << 20) as f64);
        gate.add_permits(1);
        site.until("one more has ended", async || {
            site.metric("weir_edge_fills_total", &[("result", "ok")]) == f64::from(ended)
        })
        .await;
    }
    for (download, tarball) in downloads.into_iter().zip(&tarballs) {
        assert!(download.await.unwrap().bytes() == &tarball.zstd);
    }
    site.settled().await;
    assert!(bytes_on_disk(&site) <= 10 << 20);
    assert_eq!(bytes_on_disk(&site) as f64, site.metric("weir_edge_cache_bytes", &[]));
}
