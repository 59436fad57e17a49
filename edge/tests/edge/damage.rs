use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::{Fault, Tarball};

fn flip(path: &std::path::Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Writes into the middle of a file, as `dd conv=notrunc` does. The clock of the file system has ticked since it was
/// written before.
fn write_within(path: &std::path::Path, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let before = file.metadata().unwrap();
    let changed = |now: fs::Metadata| (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec());
    loop {
        file.write_all_at(bytes, before.len() / 2).unwrap();
        if changed(file.metadata().unwrap()) {
            return;
        }
    }
}

#[tokio::test]
async fn a_bit_that_turns_on_disk_is_healed_by_a_forced_refresh() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    flip(&site.blob_files()[0]);
    let reply = client.get(TARBALL, &[ZSTD, ("cache-control", "no-cache")]).await;
    assert_eq!(reply.bytes(), &tarball.zstd);
    assert_eq!(site.metric("weir_edge_verify_failures_total", &[("where", "disk")]), 1.0);
    assert_eq!(site.metric("weir_edge_evictions_total", &[("reason", "corrupt")]), 1.0);
    assert_eq!(site.origin.asked("blob").len(), 2);
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    site.settled().await;
    assert_eq!(fs::read(&site.blob_files()[0]).unwrap(), tarball.zstd);
}

#[tokio::test]
async fn damage_from_before_the_start_is_healed_in_the_request() {
    let damages: [fn(&std::path::Path); 3] = [
        flip,
        |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1000).unwrap(),
        |path| fs::remove_file(path).unwrap(),
    ];
    for (number, damage) in damages.iter().enumerate() {
        let mut site = Site::start().await;
        let tarball = Tarball::random(1, 300_000);
        site.origin.publish("shop", 7, 1, &tarball);
        site.client("h2").await.get(TARBALL, &[ZSTD]).await;
        site.settled().await;
        // The last one happens while the edge runs: its index still knows the file.
        if number < 2 {
            site.stop_edge().await;
        }
        damage(&site.blob_files()[0]);
        if number < 2 {
            site.start_edge().await;
        }
        let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
        assert_eq!(reply.bytes(), &tarball.zstd, "{number}");
        assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored", "{number}");
        let (damaged, vanished) = (
            site.metric("weir_edge_verify_failures_total", &[("where", "disk")]),
            site.metric("weir_edge_evictions_total", &[("reason", "vanished")]),
        );
        assert_eq!((damaged, vanished), if number < 2 { (1.0, 0.0) } else { (0.0, 1.0) }, "{number}");
        site.settled().await;
        assert_eq!(site.blob_files().len(), 1);
    }
}

#[tokio::test]
async fn a_file_that_is_written_to_under_a_running_edge_is_verified_again_before_its_first_byte() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 3_500_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    let file = site.blob_files().remove(0);
    let verified = async || {
        let explained: serde_json::Value =
            serde_json::from_str(&site.admin("/v1/explain?service=shop").await.1).unwrap();
        explained["version"]["representations"][0]["held"]["verified"].clone()
    };
    assert_eq!(verified().await, true);
    write_within(&file, b"8 bytes!");
    assert_eq!(verified().await, false);
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert!(reply.bytes() == &tarball.zstd, "no wrong byte is served");
    assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored");
    assert_eq!(site.metric("weir_edge_verify_failures_total", &[("where", "disk")]), 1.0);
    assert_eq!(site.metric("weir_edge_evictions_total", &[("reason", "corrupt")]), 1.0);
    assert_eq!(site.origin.asked("blob").len(), 4, "each fetch of more than a piece asks twice");

    // One whose bytes are right in spite of that stays.
    site.settled().await;
    let file = site.blob_files().remove(0);
    let middle = tarball.zstd.len() / 2;
    write_within(&file, &tarball.zstd[middle..middle + 8]);
    assert_eq!(verified().await, false);
    assert!(client.get(TARBALL, &[ZSTD]).await.bytes() == &tarball.zstd);
    assert_eq!((verified().await, site.origin.asked("blob").len()), (true.into(), 4));
    assert_eq!(site.metric("weir_edge_verify_failures_total", &[("where", "disk")]), 1.0);
}

#[tokio::test]
async fn what_rots_after_it_was_verified_is_healed_by_the_request_that_finds_out() {
    let site = Site::start().await;
    for (n, size) in [(1, 300_000), (2, 3_500_000)] {
        let tarball = Tarball::random(n, size);
        site.origin.publish("shop", n, 1, &tarball);
        let path = format!("/v1/services/shop/tarballs/{}", tarball.digest());
        let mut client = site.client("h2").await;
        // It is fetched, and read from its file once; the next one would bring it to memory.
        for _ in 0..2 {
            assert_eq!(client.get(&path, &[ZSTD]).await.bytes(), &tarball.zstd);
            site.settled().await;
        }
        let files = site.blob_files();
        let file = files.iter().find(|file| fs::metadata(file).unwrap().len() == tarball.zstd.len() as u64);
        flip(file.unwrap());
        let reply = client.get(&path, &[ZSTD]).await;
        assert!(reply.bytes() == &tarball.zstd, "{size}: no wrong byte is served");
        assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored", "{size}");
        assert_eq!(site.metric("weir_edge_evictions_total", &[("reason", "corrupt")]), n as f64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_read_to_its_end_costs_nobody_an_answer_and_is_fetched_anew() {
    const SIZE: usize = 24 << 20;
    let site = Site::start().await;
    let tarball = Tarball::random(1, SIZE);
    site.origin.publish("shop", 7, 1, &tarball);
    site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    // In the middle of their answers the file turns out to be short.
    let mut downloads = Vec::new();
    for (version, encoding) in [("h1", vec![ZSTD]), ("h2", vec![]), ("h3", vec![ZSTD])] {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &encoding).await;
        let first = download.next().await.unwrap().unwrap();
        let whole = if encoding.is_empty() { &tarball.tar } else { &tarball.zstd };
        downloads.push((version, client, download, whole.slice(first.len()..)));
    }
    let file = site.blob_files().remove(0);
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(SIZE as u64 / 2 + 5).unwrap();
    for (version, client, download, rest) in downloads {
        assert!(download.finish().await.bytes() == &rest, "{version}");
        drop(client);
    }
    assert_eq!(site.metric("weir_edge_cache_read_failures_total", &[]), 3.0);
    assert_eq!(site.metric("weir_edge_served_through_total", &[("why", "failed")]), 3.0);
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert!(reply.bytes() == &tarball.zstd);
    assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored");
    site.settled().await;
    assert_eq!(fs::metadata(&site.blob_files()[0]).unwrap().len(), tarball.zstd.len() as u64);
}

#[tokio::test]
async fn wrong_bytes_of_the_origin_reach_nobody() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.faults([Fault::Flip]);
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    assert_eq!(site.metric("weir_edge_verify_failures_total", &[("where", "origin")]), 1.0);
    let asked = site.origin.asked("blob");
    assert_eq!(asked.iter().map(|asked| asked.no_cache).collect::<Vec<_>>(), [false, true]);

    let other = Tarball::random(2, 300_000);
    site.origin.publish("other", 7, 1, &other);
    site.origin.faults([Fault::Flip, Fault::Flip]);
    let reply = client.get("/v1/services/other/tarball", &[]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    assert_eq!(site.metric("weir_edge_fills_total", &[("result", "corrupt")]), 1.0);
    site.settled().await;
    assert_eq!((site.blob_files().len(), site.incoming_files()), (1, 0));
    assert_eq!(client.get("/v1/services/other/tarball", &[]).await.bytes(), &other.tar, "the next one is good");
}

#[tokio::test]
async fn a_transfer_that_breaks_off_is_resumed() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.faults([Fault::Break(100_000), Fault::Break(50_000)]);
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    let ranges: Vec<_> = site.origin.asked("blob").into_iter().map(|asked| asked.range).collect();
    assert_eq!((ranges.len(), ranges[0].as_deref()), (3, None));
    assert!(ranges[2].is_some(), "{ranges:?}");

    let other = Tarball::random(2, 300_000);
    site.origin.publish("other", 7, 1, &other);
    site.origin.faults([Fault::Break(1), Fault::Break(1), Fault::Break(1)]);
    assert_eq!(client.get("/v1/services/other/tarball", &[]).await.status, 503);
    site.origin.publish("lost", 7, 1, &Tarball::random(3, 1000));
    site.origin.faults([Fault::Missing, Fault::Missing]);
    let reply = client.get("/v1/services/lost/tarball", &[]).await;
    assert_eq!((reply.status, reply.problem()["retryable"].as_bool()), (503, Some(true)));
    site.until("nothing is left behind", async || site.incoming_files() == 0).await;
}

#[tokio::test]
async fn what_an_origin_does_wrong_is_asked_for_again_or_needs_no_answer() {
    let site = Site::start().await;
    let mut client = site.client("h2").await;
    let length = Tarball::random(0, 300_000).zstd.len();
    for (seed, what, faults, asked, failures) in [
        (1, "it breaks off behind the last byte", vec![Fault::Break(length)], 1, 0.0),
        (2, "more than there should be", vec![Fault::Longer], 2, 1.0),
        (3, "a range is ignored", vec![Fault::Break(1000), Fault::RangeIgnored], 2, 0.0),
        (4, "a range is another one", vec![Fault::Break(1000), Fault::OtherRange], 3, 1.0),
        (5, "a range that holds too much", vec![Fault::Break(1000), Fault::Longer], 3, 1.0),
    ] {
        let tarball = Tarball::random(seed, 300_000);
        site.origin.publish("shop", seed, 1, &tarball);
        let path = format!("/v1/services/shop/tarballs/{}", tarball.digest());
        let before = (site.origin.asked("blob").len(), site.metric("weir_edge_verify_failures_total", &[]));
        site.origin.faults(faults);
        let reply = client.get(&path, &[ZSTD]).await;
        assert_eq!((reply.status, reply.bytes() == &tarball.zstd), (200, true), "{what}");
        assert_eq!(site.origin.asked("blob").len() - before.0, asked, "{what}");
        assert_eq!(site.metric("weir_edge_verify_failures_total", &[]) - before.1, failures, "{what}");
    }
    site.until("nothing is left behind", async || site.incoming_files() == 0).await;
}
