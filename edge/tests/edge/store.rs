//! What the edge caches, in memory and on disk, within its bounds, and across restarts.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use tokio::sync::Semaphore;

use crate::site::{Site, ZSTD, a_moment, always_revalidating};
use crate::test_origin::{FRAME, Fault, Tarball};

fn path(number: u64) -> String {
    format!("/v1/services/s{number}/tarball")
}

/// Tarballs of this size as services `s0`, `s1`, …
fn publish(site: &Site, count: u64, size: usize) -> Vec<Tarball> {
    let tarballs: Vec<_> = (0..count).map(|seed| Tarball::random(seed, size)).collect();
    for (number, tarball) in (0..).zip(&tarballs) {
        site.origin.publish(&format!("s{number}"), 7, 1, tarball);
    }
    tarballs
}

async fn fetch(site: &Site, tarballs: &[Tarball]) {
    let mut client = site.client("h2").await;
    for (number, tarball) in (0..).zip(tarballs) {
        assert!(client.get(&path(number), &[ZSTD]).await.bytes() == &tarball.zstd, "{number}");
    }
}

fn hits(site: &Site, tier: &str) -> f64 {
    site.metric("weir_edge_cache_hits_total", &[("tier", tier)])
}

#[tokio::test]
async fn repeated_requests_are_served_from_memory_within_its_bound() {
    let site = Site::with(|config| config.cache.memory = ByteSize::mib(12)).await;
    let tarballs = publish(&site, 40, 500_000);
    for _ in 0..3 {
        fetch(&site, &tarballs[..10]).await;
    }
    assert_eq!((hits(&site, "disk"), hits(&site, "memory")), (0.0, 20.0));
    fetch(&site, &tarballs).await;
    site.settled().await;
    let bytes = site.in_use("memory_bytes");
    assert!(bytes <= f64::from(12 << 20) && bytes > 1e7, "{bytes}");
    assert_eq!(site.limit("memory_bytes"), f64::from(12 << 20));
    assert!(site.metric("weir_edge_cache_memory_evictions_total", &[]) > 0.0);
    assert_eq!(site.origin.requests("object").len(), 40);
    fetch(&site, &tarballs).await;
    assert_eq!(site.origin.requests("object").len(), 40, "the disk has what the memory has not");
    assert!(hits(&site, "disk") > 10.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_stay_within_the_memory_budget() {
    let site = Site::with(|config| {
        (config.cache.memory, config.cache.in_flight) = (ByteSize::mib(4), ByteSize::mib(16));
    })
    .await;
    let tarballs = publish(&site, 40, 3 * FRAME);
    // All over one connection, whose window is soon used up.
    let client = site.client("h2").await;
    let readers = (0..).zip(&tarballs).map(|(number, tarball)| {
        let mut client = client.clone();
        let site = &site;
        async move {
            let reply = client.get(&path(number), &[ZSTD]).await;
            let held = site.in_use("in_flight_bytes");
            assert!(held <= f64::from(20 << 20), "{held}");
            assert!(reply.bytes() == &tarball.zstd);
        }
    });
    futures_util::future::join_all(readers).await;
    site.until("all is given back", async || site.in_use("in_flight_bytes") == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_outlive_a_restart_and_a_crash() {
    let mut site = Site::start().await;
    let tarballs = publish(&site, 10, 3 * FRAME / 2);
    fetch(&site, &tarballs).await;
    site.settled().await;
    let requests = site.origin.requests("object").len();
    for crash in [false, true] {
        if crash {
            site.cut_edge().await;
        } else {
            site.stop_edge().await;
        }
        // What a process that died was writing, and somebody else's file.
        let folder = site.object_files()[0].parent().unwrap().to_owned();
        fs::write(folder.join(".new-12ab-xyz"), "half").unwrap();
        fs::write(site.objects_dir().join("note.txt"), "mine").unwrap();
        site.start_edge().await;
        // Also before the files were counted.
        fetch(&site, &tarballs).await;
        assert_eq!((hits(&site, "disk"), site.origin.requests("object").len()), (30.0, requests));
        site.until("they are counted", async || site.metric("weir_edge_cache_scanning", &[]) == 0.0).await;
        assert_eq!(site.objects().await, 30);
        assert!(!folder.join(".new-12ab-xyz").exists() && site.objects_dir().join("note.txt").exists());
        fs::remove_file(site.objects_dir().join("note.txt")).unwrap();
    }
}

#[tokio::test]
async fn the_disk_limit_holds_from_the_start() {
    let on_disk =
        |site: &Site| -> u64 { site.object_files().iter().map(|file| fs::metadata(file).unwrap().len()).sum() };
    let mut site = Site::with(|config| {
        (config.cache.disk, config.cache.memory) = (ByteSize::mib(10), ByteSize::mib(4));
    })
    .await;
    let tarballs = publish(&site, 30, 900_000);
    fetch(&site, &tarballs).await;
    site.settled().await;
    assert!(on_disk(&site) <= 10 << 20);
    let (bytes, limit, entries) = (site.in_use("disk_bytes"), site.limit("disk_bytes"), site.object_files().len());
    assert!(bytes <= limit && limit == f64::from(10 << 20) && site.objects().await == entries as u64);
    assert_eq!(site.metric("weir_edge_evictions_total", &[("reason", "size")]), 30.0 - entries as f64);
    fetch(&site, &tarballs).await;
    site.stop_edge().await;
    site.config.cache.disk = ByteSize::mib(5);
    site.start_edge().await;
    site.until("they are counted", async || site.metric("weir_edge_cache_scanning", &[]) == 0.0).await;
    assert!(on_disk(&site) <= 5 << 20);
    fetch(&site, &tarballs).await;
}

#[tokio::test]
async fn an_object_larger_than_the_disk_is_served_and_not_stored() {
    let site = Site::with(|config| config.cache.disk = ByteSize::mib(1)).await;
    let large = Tarball::in_frames(Tarball::random(0, 3 << 20).tar.to_vec(), 3 << 20);
    site.origin.publish("s0", 7, 1, &large);
    let small = Tarball::random(1, 1000);
    site.origin.publish("s1", 7, 1, &small);
    let mut client = site.client("h3").await;
    client.get(&path(1), &[ZSTD]).await;
    let reply = client.get(&path(0), &[ZSTD]).await;
    assert!(reply.bytes() == &large.zstd);
    assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored", "in memory");
    site.settled().await;
    assert_eq!(site.metric("weir_edge_cache_write_dropped_total", &[("reason", "too_large")]), 1.0);
    assert_eq!((site.object_files().len(), site.new_files()), (1, 0), "and the small one stays");
}

#[tokio::test]
async fn versions_share_equal_frames() {
    let site = Site::with(always_revalidating).await;
    let mut tar = Tarball::random(1, 8 * FRAME).tar.to_vec();
    site.origin.publish("s0", 7, 1, &Tarball::in_frames(tar.clone(), FRAME));
    let mut client = site.client("h2").await;
    client.get(&path(0), &[ZSTD]).await;
    site.settled().await;
    let (requests, files) = (site.origin.requests("object").len(), site.object_files().len());
    tar[3 * FRAME + 7] ^= 1;
    let next = Tarball::in_frames(tar, FRAME);
    site.origin.publish("s0", 8, 1, &next);
    a_moment().await;
    let reply = client.get(&path(0), &[ZSTD]).await;
    assert_eq!((reply.header("weir-generation"), reply.bytes() == &next.zstd), ("8", true));
    site.settled().await;
    assert_eq!(site.origin.requests("object").len() - requests, 2, "the manifest, and the frame that changed");
    assert_eq!(site.object_files().len() - files, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_or_failed_origin_delays_no_cached_version() {
    let site = Site::with(|config| config.cache.fill_wait = Duration::from_secs(1)).await;
    let tarballs = publish(&site, 6, 300_000);
    fetch(&site, &tarballs[..3]).await;
    let mut client = site.client("h2").await;
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults((0..3).map(|_| Fault::Hold(gate.clone())));
    for number in 3..6 {
        assert_eq!(client.get(&path(number), &[ZSTD]).await.status, 503, "the origin was queried, and hangs");
    }
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
async fn a_frequently_read_body_keeps_its_manifest() {
    let mut site = Site::with(|config| {
        (config.cache.disk, config.cache.memory) = (ByteSize::mib(30), ByteSize::mib(4));
    })
    .await;
    let often = Tarball::random(100, 4 * FRAME);
    site.origin.publish("often", 7, 1, &often);
    publish(&site, 60, 900_000);
    let mut client = site.client("h2").await;
    for number in 0..60 {
        if number % 3 == 0 {
            assert!(client.get("/v1/services/often/tarball", &[ZSTD]).await.bytes() == &often.zstd);
        }
        assert!(client.get(&path(number), &[ZSTD]).await.status == 200);
        site.settled().await;
    }
    site.stop_edge().await;
    site.origin.go_down().await;
    site.start_edge().await;
    let reply = site.client("h2").await.get("/v1/services/often/tarball", &[ZSTD]).await;
    assert!(reply.status == 200 && reply.bytes() == &often.zstd);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_does_not_evict_frequently_requested_objects() {
    let site = Site::with(|config| {
        (config.cache.disk, config.cache.memory) = (ByteSize::mib(40), ByteSize::mib(4));
    })
    .await;
    let tarballs = publish(&site, 80, 1_000_000);
    for _ in 0..2 {
        fetch(&site, &tarballs[..6]).await;
        site.settled().await;
    }
    // A scan, of twice what the disk takes.
    fetch(&site, &tarballs).await;
    site.settled().await;
    let requests = site.origin.requests("object").len();
    fetch(&site, &tarballs[..6]).await;
    assert_eq!(site.origin.requests("object").len(), requests);
}
