//! Disks that are full, read-only, broken, or out of descriptors: what they cannot take is served from memory.

use std::fs::{self, File};
use std::process::Command;

use crate::mount::Mount;
use crate::site::{Site, TARBALL, ZSTD, a_moment, always_revalidating};
use crate::test_origin::{FRAME, Tarball};

fn dropped(site: &Site, reason: &str) -> f64 {
    site.metric("weir_edge_cache_write_dropped_total", &[("reason", reason)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_disk_breaks_neither_collapsing_nor_serving() {
    let site = Site::with(always_revalidating).await;
    site.break_disk();
    let (old, new) = (Tarball::random(1, 4 * FRAME), Tarball::random(2, 5 * FRAME));
    site.origin.publish("shop", 7, 1, &old);
    let mut readers = Vec::new();
    for number in 0..100 {
        let mut client = site.client(["h1", "h2", "h3"][number % 3]).await;
        readers.push(tokio::spawn(async move { client.get(TARBALL, &[ZSTD]).await }));
    }
    for reader in readers {
        assert!(reader.await.unwrap().bytes() == &old.zstd);
    }
    assert_eq!(site.origin.requests("object").len(), 5, "the manifest and each frame, once");
    site.settled().await;
    assert!(dropped(&site, "failed") >= 1.0);
    assert_eq!(dropped(&site, "failed") + dropped(&site, "paused"), 5.0);
    assert_eq!((site.metric("weir_edge_cache_writing", &[]), site.in_use("disk_bytes")), (0.0, 0.0));
    assert!(site.admin("/readyz").await.1.contains("degraded: the last object could not be written to disk"));

    // A version that comes meanwhile is served as well, in every coding, and from memory.
    site.origin.publish("shop", 8, 1, &new);
    a_moment().await;
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.header("weir-generation"), reply.bytes() == &new.zstd), ("8", true));
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        assert!(client.get(TARBALL, &[]).await.bytes() == &new.tar, "{version}: decoded");
        let reply = client.get(TARBALL, &[ZSTD, ("range", "bytes=1048570-1048580")]).await;
        assert_eq!((reply.status, reply.bytes()), (206, &new.zstd.slice(1_048_570..1_048_581)), "{version}");
    }
    assert_eq!(site.origin.requests("object").len(), 5 + 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_serves_stored_and_new_objects() {
    let mut site = Site::prepare().await;
    let Some(_mount) = Mount::tmpfs(&site.config.cache.dir, "size=16m") else { return };
    site.start_edge().await;
    let (cached, large) = (Tarball::random(1, 300_000), Tarball::random(2, 24 * FRAME));
    site.origin.publish("cached", 7, 1, &cached);
    site.origin.publish("shop", 7, 1, &large);
    let mut client = site.client("h2").await;
    for _ in 0..3 {
        client.get("/v1/services/cached/tarball", &[ZSTD]).await;
        site.settled().await;
    }
    assert!(client.get(TARBALL, &[ZSTD]).await.bytes() == &large.zstd);
    site.settled().await;
    assert!(dropped(&site, "no_space") >= 1.0);
    assert!(site.metric("weir_edge_cache_limit_bytes", &[]) < f64::from(16 << 20), "it knows how much there is");
    assert!(
        site.metric("weir_edge_evictions_total", &[("reason", "size")]) >= 1.0,
        "and there is room after the pause"
    );
    assert_eq!(site.new_files(), 0, "nothing half written is left");
    assert!(client.get(TARBALL, &[ZSTD]).await.bytes() == &large.zstd);
    assert_eq!(site.origin.requests("object").len(), 26, "the memory has what the disk has not");
    site.stop_edge().await;
    site.start_edge().await;
    let reply = site.client("h2").await.get("/v1/services/cached/tarball", &[ZSTD]).await;
    assert_eq!(reply.bytes(), &cached.zstd);
    assert_eq!(site.metric("weir_edge_cache_hits_total", &[("tier", "disk")]), 1.0);
    site.stop_edge().await;
}

#[tokio::test]
async fn an_edge_starts_on_a_read_only_disk() {
    let mut site = Site::prepare().await;
    let dir = site.config.cache.dir.clone();
    let Some(_mount) = Mount::tmpfs(&dir, "size=16m") else { return };
    site.start_edge().await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    site.stop_edge().await;
    fs::create_dir_all(dir.join("access")).unwrap();
    fs::write(dir.join("access/lists.json"), "damaged").unwrap();
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&dir).status();
    assert!(remounted.unwrap().success());
    site.origin.go_down().await;
    site.start_edge().await;
    assert_eq!(site.client("h2").await.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    site.cut_edge().await;
}

#[tokio::test]
async fn an_unreadable_file_fails_no_request() {
    let (mut site, tarball) = Site::serving(2 * FRAME).await;
    site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    site.stop_edge().await;
    site.start_edge().await;
    site.until("it is counted", async || site.objects().await == 3).await;
    // It can be opened, and no byte of it be read.
    let file = site.object_file(&tarball.frames()[1]);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert!(reply.bytes() == &tarball.zstd);
    assert_eq!(site.metric("weir_edge_cache_read_failures_total", &[]), 1.0);
    assert_eq!(site.origin.requests("object").len(), 3 + 1, "what cannot be read is fetched");
}

/// Files are opened until there are no more to be had, in a process of its own: its neighbours would be out of them too.
#[test]
fn without_file_descriptors_objects_are_served_and_none_is_evicted() {
    const CHILD: &str = "WEIR_TEST_WITHOUT_FILE_DESCRIPTORS";
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(out_of_file_descriptors());
    }
    let test = "disk_failures::without_file_descriptors_objects_are_served_and_none_is_evicted";
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 200 && exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

async fn out_of_file_descriptors() {
    let site = Site::start().await;
    let (cached, large) = (Tarball::random(1, 300_000), Tarball::random(2, 3 * FRAME));
    site.origin.publish("cached", 7, 1, &cached);
    site.origin.publish("shop", 7, 1, &large);
    let mut client = site.client("h2").await;
    client.get("/v1/services/cached/tarball", &[ZSTD]).await;
    assert_eq!(client.head(TARBALL, &[ZSTD]).await.status, 200);
    site.settled().await;
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let forced = [ZSTD, ("cache-control", "no-cache")];
    for headers in [&forced[..1], &forced[..]] {
        assert_eq!(client.get("/v1/services/cached/tarball", headers).await.bytes(), &cached.zstd);
        assert!(client.get(TARBALL, headers).await.bytes() == &large.zstd);
    }
    site.settled().await;
    assert!(dropped(&site, "too_many_files") >= 1.0);
    assert_eq!(site.metric("weir_edge_evictions_total", &[]), 0.0);
    assert_eq!(site.origin.requests("object").len(), 1 + 4);
    drop(files);
    let reply = client.get("/v1/services/cached/tarball", &forced).await;
    assert_eq!(reply.bytes(), &cached.zstd);
    assert!(site.metric("weir_edge_cache_hits_total", &[("tier", "disk")]) >= 1.0, "its file is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repaired_disk_stores_objects_again() {
    let mut site = Site::start().await;
    site.break_disk();
    let (one, other) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("shop", 7, 1, &one);
    site.origin.publish("other", 7, 1, &other);
    assert_eq!(site.client("h2").await.get(TARBALL, &[ZSTD]).await.bytes(), &one.zstd);
    site.settled().await;
    site.mend_disk();
    // Not at once: the disk is left alone for a while, and a new process does not know of that.
    site.client("h2").await.get("/v1/services/other/tarball", &[ZSTD]).await;
    site.settled().await;
    assert_eq!((dropped(&site, "paused"), site.object_files().len()), (1.0, 0));
    site.stop_edge().await;
    site.start_edge().await;
    site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    assert_eq!(site.object_files(), [site.object_file(&one.named())]);
    assert_eq!(site.admin("/readyz").await.0, 200);
}
