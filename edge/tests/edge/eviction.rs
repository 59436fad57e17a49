use std::fs;
use std::sync::Arc;
use std::time::Duration;

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
    assert_eq!(site.origin.asked("blob").len(), before + 2, "its first piece, and the rest");

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
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults([Fault::Gate(gate.clone())]);
    let looking = async {
        site.until("it is under way", async || site.metric("weir_edge_serving_through", &[]) == 1.0).await;
        assert_eq!(site.incoming_files(), 0, "nothing is written meanwhile");
        gate.add_permits(1);
    };
    let headers = [ZSTD];
    let (reply, ()) = tokio::join!(client.get("/v1/services/s0/tarball", &headers), looking);
    assert_eq!(reply.bytes(), &large.zstd);
    assert_eq!(site.metric("weir_edge_served_through_total", &[("why", "too_large")]), 1.0);
    assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200");
    site.settled().await;
    assert_eq!((site.blob_files().len(), site.incoming_files()), (1, 0), "and the small one stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bound_holds_for_blobs_on_their_way_and_a_large_one_keeps_no_small_one_waiting() {
    let site = Site::with(|config| config.cache.disk = ByteSize::mib(10)).await;
    let tarballs = [Tarball::random(0, 6 << 20), Tarball::random(1, 6 << 20), Tarball::random(2, 300_000)];
    for (number, tarball) in (0..).zip(&tarballs) {
        site.origin.publish(&format!("s{number}"), 7, 1, tarball);
    }
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults([Fault::Hold(gate.clone())]);
    let mut client = site.client("h2").await;
    for number in 0..3 {
        client.head(&path(number), &[ZSTD]).await;
    }
    let get = |number| {
        let mut client = client.clone();
        tokio::spawn(async move { client.get(&path(number), &[ZSTD]).await })
    };
    let first = get(0);
    site.until("the first is on its way", async || site.origin.asked("blob").len() == 1).await;
    let second = get(1);
    site.until("two wait", async || site.metric("weir_edge_fill_waiters", &[]) == 2.0).await;
    let small = get(2).await.unwrap();
    assert_eq!((small.bytes(), small.header("cache-status").contains("stored")), (&tarballs[2].zstd, true));
    assert!(!second.is_finished(), "it waits for room");
    // There is none for a while: it is served all the same.
    let second = second.await.unwrap();
    assert_eq!((second.status, second.header("cache-status")), (200, "edge-1; fwd=miss; fwd-status=200"));
    assert!(second.bytes() == &tarballs[1].zstd);
    assert_eq!(site.metric("weir_edge_served_through_total", &[("why", "no_room")]), 1.0);
    assert!(!first.is_finished());
    gate.add_permits(1);
    assert!(first.await.unwrap().bytes() == &tarballs[0].zstd);
    site.settled().await;
    assert_eq!(site.blob_files().len(), 2);
    assert_eq!(bytes_on_disk(&site) as f64, site.metric("weir_edge_cache_bytes", &[]));
    assert!(get(1).await.unwrap().header("cache-status").contains("stored"), "now there is room");
    site.settled().await;
    assert!(bytes_on_disk(&site) <= 10 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_origin_that_hangs_or_is_down_costs_nothing_that_is_held() {
    let mut site = Site::prepare().await;
    (site.config.cache.disk, site.config.cache.fill_wait) = (ByteSize::mib(12), Duration::from_secs(2));
    site.start_edge().await;
    let tarballs: Vec<_> = (0..6).map(|seed| Tarball::random(seed, 3 << 20)).collect();
    for (number, tarball) in (0..).zip(&tarballs) {
        site.origin.publish(&format!("s{number}"), 7, 1, tarball);
    }
    let mut client = site.client("h2").await;
    for number in 0..3 {
        client.get(&path(number), &[ZSTD]).await;
    }
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults((0..3).map(|_| Fault::Hold(gate.clone())));
    for number in 3..6 {
        assert_eq!(client.get(&path(number), &[ZSTD]).await.status, 503);
    }
    assert_eq!(site.origin.asked("blob").len(), 9, "it was asked, and hangs");
    site.origin.go_down().await;
    for number in 3..6 {
        assert_eq!(client.get(&path(number), &[ZSTD]).await.status, 503);
    }
    assert_eq!(site.metric("weir_edge_evictions_total", &[]), 0.0);
    for number in 0..3 {
        assert_eq!(client.get(&path(number), &[ZSTD]).await.header("cache-status"), "edge-1; hit");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_are_asked_for_at_once_and_only_once_leave_what_is_established() {
    let mut site = Site::prepare().await;
    (site.config.cache.disk, site.config.cache.small) = (ByteSize::mib(40), Some(ByteSize::b(0)));
    site.start_edge().await;
    let tarballs: Vec<_> = (0..24).map(|seed| Tarball::random(seed, 4_000_000)).collect();
    for (number, tarball) in (0..).zip(&tarballs) {
        site.origin.publish(&format!("s{number}"), 7, 1, tarball);
    }
    let mut client = site.client("h2").await;
    // Six that are asked for again, and others that show which those are.
    for number in (0..6).chain(0..6).chain(6..12) {
        client.get(&path(number), &[ZSTD]).await;
        site.settled().await;
    }
    let before = site.origin.asked("blob").len();
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults((0..12).map(|_| Fault::Hold(gate.clone())));
    let mut scan = Vec::new();
    for number in 12..24 {
        let mut client = site.client("h2").await;
        scan.push(tokio::spawn(async move { client.get(&path(number), &[ZSTD]).await }));
    }
    site.until("all wait", async || site.metric("weir_edge_fill_waiters", &[]) == 12.0).await;
    site.until("some are on their way", async || site.origin.asked("blob").len() >= before + 2).await;
    gate.add_permits(12);
    for (reply, tarball) in scan.into_iter().zip(&tarballs[12..]) {
        assert!(reply.await.unwrap().bytes() == &tarball.zstd);
    }
    site.settled().await;
    for number in 0..6 {
        assert_eq!(client.get(&path(number), &[ZSTD]).await.header("cache-status"), "edge-1; hit", "{number}");
    }
}
