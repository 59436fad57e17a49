use std::fs;
use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;

use crate::mount::Mount;
use crate::site::{Site, ZSTD};
use crate::test_origin::Tarball;

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
        assert_eq!(client.get(&path(number), &[ZSTD]).await.bytes(), &tarball.zstd);
    }
}

fn hits(site: &Site, tier: &str) -> f64 {
    site.metric("weir_edge_cache_hits_total", &[("tier", tier)])
}

fn served(site: &Site, tier: &str) -> f64 {
    site.metric("weir_edge_tarballs_served_total", &[("tier", tier)])
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn what_is_asked_for_again_is_served_from_memory_within_its_bound() {
    let site = Site::with(|config| config.cache.memory = ByteSize::mib(12)).await;
    let tarballs = publish(&site, 20, 500_000);
    fetch(&site, &tarballs).await;
    assert_eq!((hits(&site, "memory"), site.metric("weir_edge_cache_memory_entries", &[])), (0.0, 0.0));
    for _ in 0..3 {
        fetch(&site, &tarballs[..10]).await;
    }
    assert_eq!((hits(&site, "file"), hits(&site, "memory")), (20.0, 10.0));
    assert_eq!(
        (served(&site, "disk"), served(&site, "memory")),
        (20.0, 10.0),
        "read into memory on the way, from disk"
    );
    // Their files are not needed any more.
    site.blob_files().iter().for_each(|file| fs::remove_file(file).unwrap());
    let asked = site.origin.asked("blob").len();
    fetch(&site, &tarballs[..10]).await;
    assert_eq!(site.origin.asked("blob").len(), asked);
    for _ in 0..4 {
        fetch(&site, &tarballs).await;
    }
    let bytes = site.metric("weir_edge_cache_memory_bytes", &[]);
    assert!(bytes <= site.metric("weir_edge_cache_memory_limit_bytes", &[]) && bytes > 4e6, "{bytes}");
    assert_eq!(site.metric("weir_edge_cache_memory_limit_bytes", &[]), f64::from(12 << 20));
    assert!(site.metric("weir_edge_cache_memory_evictions_total", &[]) > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_of_many_blobs_hold_no_more_memory_than_is_allowed() {
    let site = Site::with(|config| config.cache.memory = ByteSize::mib(20)).await;
    let limit = f64::from(15 << 20);
    // Each is one piece, and comes through the memory; then each is asked for again, and would be held there.
    let tarballs = publish(&site, 40, 900_000);
    // All over one connection, whose window is soon used up.
    let mut client = site.client("h2").await;
    let (mut readers, mut most_lent) = (Vec::new(), 0.0);
    for _ in 0..3 {
        for (number, tarball) in (0..).zip(&tarballs) {
            let download = client.begin("GET", &path(number), &[ZSTD]).await;
            readers.push(async move { assert!(download.finish().await.bytes() == &tarball.zstd) });
            let [lent, bytes] =
                site.metrics(["weir_edge_cache_memory_lent_bytes", "weir_edge_cache_memory_bytes"], &[]);
            assert!(lent + bytes <= limit, "{lent} and {bytes}");
            most_lent = lent.max(most_lent);
        }
        site.settled().await;
    }
    assert!(most_lent > 0.5 * limit, "{most_lent}: they were slow");
    futures_util::future::join_all(readers).await;
    site.until("all is given back", async || site.metric("weir_edge_cache_memory_lent_bytes", &[]) == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_blobs_are_held_without_files_and_outlive_a_restart_and_a_crash() {
    let mut site = Site::start().await;
    assert_eq!(site.metric("weir_edge_cache_small_limit_bytes", &[]), f64::from(32 << 20));
    let tarballs = publish(&site, 30, 100_000);
    fetch(&site, &tarballs).await;
    assert_eq!(site.blob_files().len(), 0);
    fetch(&site, &tarballs).await;
    assert_eq!(hits(&site, "memory"), 30.0);
    for crash in [false, true] {
        if crash {
            site.cut_edge().await;
        } else {
            site.stop_edge().await;
        }
        site.start_edge().await;
        fetch(&site, &tarballs).await;
        assert_eq!((hits(&site, "small"), site.origin.asked("blob").len()), (30.0, 30));
        assert_eq!((served(&site, "disk"), served(&site, "memory")), (30.0, 0.0));
    }
    assert_eq!(site.metric("weir_edge_cache_write_dropped_total", &[]), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_blobs_that_rot_on_disk_are_fetched_again() {
    let mut site = Site::start().await;
    let tarballs = publish(&site, 10, 200_000);
    fetch(&site, &tarballs).await;
    site.stop_edge().await;
    for file in fs::read_dir(site.config.cache.dir.join("small/33554432")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes.chunks_mut(64 << 10).for_each(|part| part[9000] ^= 1);
        fs::write(&path, bytes).unwrap();
    }
    site.start_edge().await;
    fetch(&site, &tarballs).await;
    assert!(site.origin.asked("blob").len() > 10, "some had to be fetched again");
}

#[tokio::test]
async fn without_space_for_them_small_blobs_are_kept_in_files() {
    let site = Site::with(|config| {
        config.cache.small = Some(ByteSize::mib(32));
        // A file stands where their directory would be.
        fs::create_dir_all(&config.cache.dir).unwrap();
        fs::write(config.cache.dir.join("small"), "in the way").unwrap();
    })
    .await;
    let tarballs = publish(&site, 2, 1000);
    fetch(&site, &tarballs).await;
    site.settled().await;
    assert_eq!((site.blob_files().len(), site.metric("weir_edge_cache_small_limit_bytes", &[])), (2, 0.0));
}

#[tokio::test]
async fn the_index_tells_the_next_process_what_is_held_and_the_directories_correct_it() {
    let mut site = Site::start().await;
    let tarballs = publish(&site, 4, 400_000);
    fetch(&site, &tarballs).await;
    let size = fs::metadata(&site.blob_files()[0]).unwrap().len();
    site.stop_edge().await;
    assert!(site.config.cache.dir.join("blobs.index").exists());
    // While the edge is down one file goes, and one comes that it does not know.
    fs::remove_file(&site.blob_files()[0]).unwrap();
    let stranger = blake3_name(b"nobody asked for this");
    let group = site.config.cache.dir.join("blobs").join(&stranger[..2]);
    fs::create_dir_all(&group).unwrap();
    fs::write(group.join(&stranger), b"nobody asked for this").unwrap();

    site.start_edge().await;
    assert!(site.metric("weir_edge_cache_bytes", &[]) >= 3.0 * size as f64, "known before a directory is read");
    site.until("what is gone is noticed", async || {
        site.metric("weir_edge_evictions_total", &[("reason", "vanished")]) == 1.0
    })
    .await;
    site.until("what came is counted", async || {
        let on_disk: u64 = site.blob_files().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
        site.metric("weir_edge_cache_bytes", &[]) == on_disk as f64 && site.blob_files().len() == 4
    })
    .await;
    fetch(&site, &tarballs).await;
}

fn blake3_name(bytes: &[u8]) -> String {
    weir_shared::digest::BlobDigest::of(bytes).hex()
}

#[tokio::test]
async fn without_its_index_an_edge_finds_its_blobs_all_the_same() {
    let mut site = Site::start().await;
    let tarballs = publish(&site, 5, 400_000);
    fetch(&site, &tarballs).await;
    let index = site.config.cache.dir.join("blobs.index");
    for damage in 0..3 {
        // A crash writes no index; then it is damaged; then it is lost.
        if damage == 0 {
            site.cut_edge().await;
        } else {
            site.stop_edge().await;
        }
        match damage {
            0 => assert!(!index.exists()),
            1 => fs::write(&index, vec![7; 1000]).unwrap(),
            _ => fs::remove_file(&index).unwrap(),
        }
        site.start_edge().await;
        fetch(&site, &tarballs).await;
        assert_eq!(site.origin.asked("blob").len(), 5, "{damage}: even before the directories were gone through");
        site.until("all are known", async || site.metric("weir_edge_cache_entries", &[]) == 5.0).await;
    }
    assert!(index.with_extension("damaged").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_files_are_verified_a_few_at_a_time() {
    let mut site = Site::with(|config| config.cache.verifications = 1).await;
    let tarballs = publish(&site, 6, 2_000_000);
    fetch(&site, &tarballs).await;
    let asked = site.origin.asked("blob").len();
    site.stop_edge().await;
    site.start_edge().await;
    let limit = site.metric("weir_edge_bound_limit", &[("bound", "verifications")]);
    assert_eq!(limit, 1.0);
    let client = site.client("h2").await;
    let all = (0..).zip(&tarballs).map(|(number, tarball)| {
        let (mut client, site) = (client.clone(), &site);
        async move {
            assert!(client.get(&path(number), &[ZSTD]).await.bytes() == &tarball.zstd);
            assert!(site.metric("weir_edge_bound_in_use", &[("bound", "verifications")]) <= limit);
        }
    });
    futures_util::future::join_all(all).await;
    assert_eq!(site.origin.asked("blob").len(), asked, "all were held");
}

#[tokio::test]
async fn the_number_of_files_is_bounded() {
    let site = Site::with(|config| config.cache.blobs = 3).await;
    let tarballs = publish(&site, 8, 300_000);
    fetch(&site, &tarballs).await;
    site.settled().await;
    assert!(site.blob_files().len() <= 3);
    assert_eq!(site.metric("weir_edge_cache_limit_entries", &[]), 3.0);
    assert_eq!(site.metric("weir_edge_cache_entries", &[]), site.blob_files().len() as f64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scrub_finds_what_rots_while_nobody_asks() {
    let site = Site::with(|config| config.cache.scrub = Duration::from_secs(1)).await;
    let tarballs = publish(&site, 3, 400_000);
    fetch(&site, &tarballs).await;
    site.settled().await;
    flip(&site.blob_files()[0]);
    site.until("it is dropped", async || site.metric("weir_edge_scrub_blobs_total", &[("result", "dropped")]) == 1.0)
        .await;
    assert_eq!(site.metric("weir_edge_verify_failures_total", &[("where", "disk")]), 1.0);
    assert_eq!((site.blob_files().len(), site.origin.asked("blob").len()), (2, 3), "and nothing is fetched for it");
    site.until("a round ends", async || site.metric("weir_edge_scrub_round_timestamp_seconds", &[]) > 1e9).await;
    assert!(site.metric("weir_edge_scrub_bytes_total", &[]) > 400_000.0);
    fetch(&site, &tarballs).await;
    site.settled().await;
    assert_eq!(site.blob_files().len(), 3);
}

/// Leaves room for exactly one more file.
fn fill(dir: &Path) {
    let mut number = 0;
    while fs::write(dir.join(format!("filler-{number}")), "").is_ok() {
        number += 1;
    }
    fs::remove_file(dir.join("filler-0")).unwrap();
}

#[tokio::test]
async fn a_blob_that_finds_the_disk_full_in_the_end_is_served_and_the_disk_is_left_alone_for_a_while() {
    let mut site = Site::prepare().await;
    let dir = site.config.cache.dir.clone();
    let Some(_mount) = Mount::tmpfs(&dir, "size=64m,nr_inodes=200") else { return };
    site.start_edge().await;
    let tarballs = publish(&site, 3, 400_000);
    // The file that takes the bytes finds a place, and the directory that it belongs in finds none.
    fill(&dir);
    let dropped = |reason| site.metric("weir_edge_cache_write_dropped_total", &[("reason", reason)]);
    // An answer does not wait until its blob is kept.
    fetch(&site, &tarballs[..1]).await;
    site.until("the first one finds no place", async || dropped("no_space") == 1.0).await;
    let mut client = site.client("h2").await;
    for number in [1, 2] {
        assert_eq!(client.get(&path(number), &[ZSTD]).await.bytes(), &tarballs[number as usize].zstd);
    }
    site.until("the others are not kept", async || dropped("paused") == 2.0).await;
    assert_eq!((dropped("no_space"), dropped("paused")), (1.0, 2.0));
    assert_eq!((site.metric("weir_edge_cache_writing", &[]), site.metric("weir_edge_cache_bytes", &[])), (0.0, 0.0));
    assert_eq!((site.blob_files().len(), site.incoming_files()), (0, 0));
    site.stop_edge().await;
}
