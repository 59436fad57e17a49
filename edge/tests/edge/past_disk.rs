//! A disk that takes nothing: whatever an origin can deliver is served, and nothing that is good is thrown away.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use tokio::sync::Semaphore;

use crate::mount::Mount;
use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::{Fault, Lists, Tarball};

const PIECE: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_gone_costs_nobody_an_answer() {
    let site = Site::start().await;
    let (large, small) = (Tarball::random(1, 4 * PIECE), Tarball::random(2, 300_000));
    site.origin.publish("shop", 7, 1, &large);
    site.origin.publish("small", 7, 1, &small);
    let incoming = site.config.cache.dir.join("incoming");
    fs::remove_dir(&incoming).unwrap();
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        client.head(TARBALL, &[]).await;
        let reply = client.get(TARBALL, &[ZSTD]).await;
        assert_eq!(reply.bytes(), &large.zstd, "{version}");
        assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200", "{version}: it is not kept");
        assert_eq!(client.get(TARBALL, &[]).await.bytes(), &large.tar, "{version}: decoded");
        for part in [0..1, PIECE - 1..PIECE + 1, 4 * PIECE + 3..4 * PIECE + 4, 5..large.zstd.len()] {
            let range = format!("bytes={}-{}", part.start, part.end - 1);
            let reply = client.get(TARBALL, &[ZSTD, ("range", &range)]).await;
            assert_eq!((reply.status, reply.bytes() == &large.zstd.slice(part)), (206, true), "{version} {range}");
        }
        // One piece needs no disk.
        assert_eq!(client.get("/v1/services/small/tarball", &[ZSTD]).await.bytes(), &small.zstd, "{version}");
    }
    site.settled().await;
    assert_eq!(site.metric("weir_edge_served_through_total", &[("why", "failed")]), 18.0);
    assert_eq!(site.metric("weir_edge_cache_write_dropped_total", &[("reason", "failed")]), 21.0);
    assert_eq!(site.metric("weir_edge_fills_total", &[("result", "disk_failed")]), 18.0);
    assert_eq!(site.metric("weir_edge_cache_bytes", &[]), 0.0, "and no room is kept for it");
    site.until("their places are free", async || site.metric("weir_edge_serving_through", &[]) == 0.0).await;

    // Wrong bytes reach nobody on this way either, and an origin without lists is no hindrance.
    let mut client = site.client("h2").await;
    site.origin.faults([Fault::FlipAt(PIECE - 1)]);
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &large.zstd);
    assert_eq!(site.metric("weir_edge_verify_failures_total", &[("where", "origin")]), 1.0);
    site.origin.have_piece_lists(Lists::None);
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &large.zstd);
    site.origin.faults([Fault::Break(1), Fault::Break(1), Fault::Break(1)]);
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.status, 503, "what the origin does not deliver is a proper answer");

    fs::create_dir(&incoming).unwrap();
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored");
    assert_eq!(reply.bytes(), &large.zstd);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fills_up_in_mid_body_is_passed_by() {
    let mut site = Site::prepare().await;
    let Some(_mount) = Mount::tmpfs(&site.config.cache.dir, "size=16m") else { return };
    // All of it is for files: nothing is set aside for small blobs.
    site.config.cache.small = Some(ByteSize::b(0));
    site.start_edge().await;
    let (large, small) = (Tarball::random(1, 24 * PIECE), Tarball::random(2, 300_000));
    site.origin.publish("shop", 7, 1, &large);
    site.origin.publish("small", 7, 1, &small);
    // They are in the middle of it when the disk is full.
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults([Fault::Gate(gate.clone())]);
    let mut downloads = Vec::new();
    for (version, encoding) in [("h1", vec![ZSTD]), ("h2", vec![]), ("h3", vec![ZSTD])] {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &encoding).await;
        let first = download.next().await.unwrap().unwrap();
        let whole = if encoding.is_empty() { &large.tar } else { &large.zstd };
        downloads.push((version, client, download, whole.slice(first.len()..)));
    }
    assert_eq!(site.metric("weir_edge_served_through_total", &[]), 0.0);
    gate.add_permits(1);
    for (version, client, download, rest) in downloads {
        assert!(download.finish().await.bytes() == &rest, "{version}");
        drop(client);
    }
    let mut client = site.client("h2").await;
    assert!(site.metric("weir_edge_cache_write_dropped_total", &[("reason", "no_space")]) >= 1.0);
    assert_eq!(site.metric("weir_edge_served_through_total", &[("why", "no_space")]), 3.0);
    // The disk is left alone for a while, also by what would fit.
    site.settled().await;
    site.origin.faults([Fault::Gate(gate.clone())]);
    let download = client.begin("GET", TARBALL, &[ZSTD]);
    let looking = async {
        site.until("it is under way", async || site.metric("weir_edge_serving_through", &[]) == 1.0).await;
        assert_eq!(site.incoming_files(), 0, "nothing is written meanwhile");
        gate.add_permits(1);
    };
    let (download, ()) = tokio::join!(download, looking);
    assert!(download.finish().await.bytes() == &large.zstd);
    assert_eq!(site.metric("weir_edge_served_through_total", &[("why", "paused")]), 1.0);
    assert_eq!(client.get("/v1/services/small/tarball", &[ZSTD]).await.bytes(), &small.zstd);
    site.settled().await;
    assert_eq!(site.metric("weir_edge_cache_write_dropped_total", &[("reason", "paused")]), 2.0);
    assert_eq!((site.blob_files().len(), site.incoming_files()), (0, 0));
    site.stop_edge().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_fails_is_noticed_while_the_origin_is_silent() {
    let mut site = Site::prepare().await;
    let Some(_mount) = Mount::tmpfs(&site.config.cache.dir, "size=16m") else { return };
    site.config.cache.small = Some(ByteSize::b(0));
    site.config.cache.fill_idle = Duration::from_secs(3600);
    let tarball = Tarball::random(1, 3 * PIECE);
    site.origin.publish("shop", 7, 1, &tarball);
    site.start_edge().await;
    let mut client = site.client("h2").await;
    assert_eq!(client.head(TARBALL, &[]).await.status, 200);
    let ballast = site.config.cache.dir.join("ballast");
    let mut file = File::create(&ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    // The first piece comes; the one behind it does not until the failure was told.
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults([Fault::Gate(gate.clone())]);
    let noticing = async {
        let dropped = async || site.metric("weir_edge_cache_write_dropped_total", &[("reason", "no_space")]) == 1.0;
        site.until("the failure is told", dropped).await;
        gate.add_permits(1);
    };
    let (reply, ()) = tokio::join!(client.get(TARBALL, &[ZSTD]), noticing);
    assert!(reply.bytes() == &tarball.zstd);
    assert_eq!(site.metric("weir_edge_served_through_total", &[("why", "no_space")]), 1.0);
    drop(file);
    fs::remove_file(&ballast).unwrap();
    site.stop_edge().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_disk_is_passed_by_and_what_it_holds_is_served() {
    let site = Site::start().await;
    let (held, large) = (Tarball::random(1, 300_000), Tarball::random(2, 3 * PIECE));
    site.origin.publish("held", 7, 1, &held);
    site.origin.publish("shop", 7, 1, &large);
    let mut client = site.client("h2").await;
    client.get("/v1/services/held/tarball", &[ZSTD]).await;
    site.settled().await;
    let Some(_mount) = Mount::tmpfs(&site.config.cache.dir.join("incoming"), "ro") else { return };
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &large.zstd);
    assert_eq!(site.metric("weir_edge_served_through_total", &[("why", "read_only")]), 1.0);
    let reply = client.get("/v1/services/held/tarball", &[ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("cache-status")), (&held.zstd, "edge-1; hit"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_was_full_for_a_while_is_written_again_and_what_was_never_held_is_served_meanwhile() {
    let mut site = Site::prepare().await;
    let Some(_mount) = Mount::tmpfs(&site.config.cache.dir, "size=16m") else { return };
    site.config.cache.small = Some(ByteSize::b(0));
    site.config.freshness.fresh = Duration::from_secs(3600);
    site.origin.serve_events();
    let (one, other) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("shop", 7, 1, &one);
    site.start_edge().await;
    let in_step = async |site: &Site| site.metric("weir_edge_stream_up", &[]) == 1.0;
    site.until("the edge is in step", async || in_step(&site).await).await;
    let mut client = site.client("h2").await;
    assert_eq!(client.head(TARBALL, &[]).await.status, 200);
    let ballast = site.config.cache.dir.join("ballast");
    let mut file = File::create(&ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let mut asked = 0;
    while site.admin("/readyz").await.0 == 200 {
        asked += 1;
        assert!(asked < 1000, "the table has room without end");
        site.origin.publish(&format!("new-{asked}"), 7, 1, &one);
        let reply = client.head(&format!("/v1/services/new-{asked}/tarball"), &[]).await;
        assert_eq!(reply.status, 200, "what the origin delivers is served");
    }
    let late = "/v1/services/late/tarball";
    let mut generation = async |path: &str| client.head(path, &[]).await.header("weir-generation").to_owned();
    site.origin.publish("late", 9, 1, &one);
    assert_eq!(generation(late).await, "9");
    site.origin.push("late", 8, 1, &other);
    let refused = async || site.metric("weir_edge_generation_regressions_total", &[]) > 0.0;
    site.until("it is refused", refused).await;
    assert_eq!(generation(late).await, "9", "no reader goes back");
    site.origin.push("late", 10, 1, &other);
    site.until("it moves on", async || generation(late).await == "10").await;
    // Of this one an older version stands on disk, which would be served again after a crash.
    site.origin.push("shop", 8, 1, &other);
    let not_applied = async || site.metric("weir_edge_streams_ended_total", &[("why", "not_applied")]) > 0.0;
    site.until("it is not taken", not_applied).await;
    site.until("a forced question is put, once a second", async || {
        let reply = client.get(TARBALL, &[ZSTD, ("cache-control", "no-cache")]).await;
        assert_eq!((reply.bytes(), reply.header("weir-generation")), (&one.zstd, "7"));
        site.metric("weir_edge_stale_served_total", &[("why", "edge_failed")]) >= 1.0
    })
    .await;

    assert_eq!(site.metric("weir_edge_table_writable", &[]), 0.0);
    let explained = site.admin("/v1/explain?service=shop").await.1;
    assert!(explained.contains("can take no new version") && explained.contains("No space left"), "{explained}");
    drop(file);
    fs::remove_file(&ballast).unwrap();
    site.until("the stream is followed again", async || in_step(&site).await).await;
    assert_eq!(client.head(TARBALL, &[]).await.header("weir-generation"), "8");
    assert_eq!(site.admin("/readyz").await.0, 200);
    assert_eq!(site.metric("weir_edge_table_writable", &[]), 1.0);
    assert_eq!(site.metric("weir_edge_bound_in_use", &[("bound", "undurable_services")]), 0.0);
    site.cut_edge().await;
    site.origin.go_down().await;
    site.start_edge().await;
    let mut client = site.client("h2").await;
    for (path, generation) in [(TARBALL, "8"), (late, "10"), ("/v1/services/new-1/tarball", "7")] {
        assert_eq!(client.head(path, &[]).await.header("weir-generation"), generation, "{path}");
    }
    site.stop_edge().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_past_the_disk_hold_up_nothing_else_of_their_origin() {
    let site = Site::start().await;
    let (large, other) = (Tarball::random(1, 24 * PIECE), Tarball::random(2, 3 * PIECE));
    site.origin.publish("shop", 7, 1, &large);
    fs::remove_dir(site.config.cache.dir.join("incoming")).unwrap();
    // More of them than the windows of a connection to the origin have room for.
    let mut slow = Vec::new();
    for version in ["h1", "h2", "h3", "h1", "h2", "h3", "h2", "h2"] {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &[ZSTD]).await;
        let first = download.next().await.unwrap().unwrap();
        slow.push((version, client, download, first.len()));
    }
    // They have taken what their own windows hold, and no more.
    let received = || site.metric("weir_edge_origin_received_bytes_total", &[]);
    let mut before = -1.0;
    site.until("they stand still", async || std::mem::replace(&mut before, received()) == received()).await;
    site.origin.publish("other", 7, 1, &other);
    let reply = site.client("h2").await.get("/v1/services/other/tarball", &[ZSTD]).await;
    assert!(reply.bytes() == &other.zstd, "a descriptor, a piece list and a blob");
    for (version, client, download, read) in slow {
        assert!(download.finish().await.bytes() == &large.zstd.slice(read..), "{version}");
        drop(client);
    }
    let asked = site.origin.asked("blob");
    let pieces = asked.iter().filter_map(|asked| asked.range.as_ref()).all(|range| {
        let (first, last) = range["bytes=".len()..].split_once('-').unwrap();
        last.parse::<usize>().unwrap() - first.parse::<usize>().unwrap() < PIECE
    });
    assert!(pieces, "no answer of the origin is longer than a piece");
}

/// Files are opened until there are no more to be had, in a process of its own: its neighbours would be out of them too.
#[test]
fn without_file_descriptors_blobs_are_served_and_none_is_thrown_away() {
    const CHILD: &str = "WEIR_TEST_WITHOUT_FILE_DESCRIPTORS";
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(out_of_file_descriptors());
    }
    let test = "past_disk::without_file_descriptors_blobs_are_served_and_none_is_thrown_away";
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 200 && exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

async fn out_of_file_descriptors() {
    let site = Site::start().await;
    let (held, large, small) =
        (Tarball::random(1, 300_000), Tarball::random(2, 3 * PIECE), Tarball::random(3, 300_000));
    for (service, tarball) in [("held", &held), ("shop", &large), ("small", &small)] {
        site.origin.publish(service, 7, 1, tarball);
    }
    let mut client = site.client("h2").await;
    client.get("/v1/services/held/tarball", &[ZSTD]).await;
    site.settled().await;
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    for _ in 0..2 {
        assert_eq!(client.get("/v1/services/held/tarball", &[ZSTD]).await.bytes(), &held.zstd);
        assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &large.zstd);
        assert_eq!(client.get("/v1/services/small/tarball", &[ZSTD]).await.bytes(), &small.zstd);
    }
    assert!(site.metric("weir_edge_served_through_total", &[("why", "too_many_files")]) >= 2.0);
    assert_eq!(site.metric("weir_edge_evictions_total", &[]), 0.0);
    drop(files);
    let reply = client.get("/v1/services/held/tarball", &[ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("cache-status")), (&held.zstd, "edge-1; hit"));
}
