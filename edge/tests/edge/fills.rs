//! Fills: one for each object, shared by all requests, with slow or failing origins and clients.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Semaphore;

use crate::client::Download;
use crate::site::{PATIENCE, Site, TARBALL, ZSTD};
use crate::test_origin::{FRAME, Fault, Tarball};

fn gate() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

/// Reads at least this many bytes.
async fn read(download: &mut Download, bytes: usize) -> Bytes {
    let mut read = BytesMut::new();
    while read.len() < bytes {
        let part = tokio::time::timeout(PATIENCE, download.next()).await.expect("it comes in time");
        read.extend_from_slice(&part.expect("there is more").unwrap());
    }
    read.freeze()
}

/// What comes before the answer is reset.
async fn read_until_reset(download: &mut Download) -> Bytes {
    let mut read = BytesMut::new();
    loop {
        match tokio::time::timeout(PATIENCE, download.next()).await.expect("it ends in time") {
            Some(Ok(part)) => read.extend_from_slice(&part),
            Some(Err(_)) => return read.freeze(),
            None => panic!("it ends cleanly"),
        }
    }
}

fn retries(site: &Site, reason: &str) -> f64 {
    site.metric("weir_edge_fill_retries_total", &[("reason", reason)])
}

fn filled(site: &Site, result: &str) -> f64 {
    site.metric("weir_edge_fills_total", &[("result", result)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_is_streamed_before_its_last_frame_has_arrived() {
    let (site, tarball) = Site::serving(4 * FRAME).await;
    let gate = gate();
    site.origin.fault_of(tarball.frames()[3], Fault::Gate(gate.clone()));
    // The last frame comes when all have what is before it.
    let have_three = Arc::new(Semaphore::new(0));
    let (mut clients, mut downloads) = (Vec::new(), Vec::new());
    // First, because the edge waits ten seconds for the last frame.
    for number in 0..30 {
        clients.push(site.client(["h1", "h2", "h3"][number % 3]).await);
    }
    for (number, mut client) in clients.into_iter().enumerate() {
        let have_three = have_three.clone();
        let encoding = if number % 5 == 0 { vec![] } else { vec![ZSTD] };
        downloads.push(tokio::spawn(async move {
            let mut download = client.begin("GET", TARBALL, &encoding).await;
            let mut bytes = BytesMut::from(&read(&mut download, 3 * FRAME).await[..]);
            have_three.add_permits(1);
            bytes.extend_from_slice(&download.finish().await.body.unwrap());
            bytes.freeze()
        }));
    }
    have_three.acquire_many(30).await.unwrap().forget();
    gate.add_permits(1);
    for (number, download) in downloads.into_iter().enumerate() {
        let expected = if number % 5 == 0 { &tarball.tar } else { &tarball.zstd };
        assert!(download.await.unwrap() == expected, "{number}");
    }
    assert_eq!(site.origin.requests("object").len(), 5, "the manifest and each frame, once");
    assert_eq!(filled(&site, "ok"), 5.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_ahead_is_concurrent_and_limited_to_its_window() {
    let (site, tarball) = Site::serving(24 * FRAME).await;
    let gate = gate();
    for frame in tarball.frames() {
        site.origin.fault_of(frame, Fault::Hold(gate.clone()));
    }
    let mut client = site.client("h2").await;
    let download = tokio::spawn(async move { client.get(TARBALL, &[ZSTD]).await });
    let running = || site.in_use("fills");
    // The frames are a little larger than 1 MiB. As many as have come, and not quite 2 MiB more, are requested after the one
    // that was read last, up to 8 MiB.
    for (come, requests, waited_for) in [(0, 2, 2), (2, 5, 3), (3, 11, 6), (6, 18, 7)] {
        gate.add_permits(come);
        site.until("they are requested", async || site.origin.requests("object").len() == 1 + requests).await;
        assert_eq!(running(), f64::from(waited_for), "side by side");
    }
    gate.add_permits(24);
    assert!(download.await.unwrap().bytes() == &tarball.zstd);
    assert_eq!(site.origin.requests("object").len(), 25);
}

#[tokio::test]
async fn a_poll_that_finds_a_new_version_prefetches_its_manifest_only() {
    let (site, tarball) = Site::serving(3 * FRAME).await;
    let mut client = site.client("h2").await;
    assert_eq!(client.head(TARBALL, &[ZSTD]).await.status, 200);
    site.until("the manifest is stored", async || site.object_files().len() == 1).await;
    assert_eq!(client.head(TARBALL, &[ZSTD]).await.status, 200);
    assert_eq!(site.origin.requests("object").len(), 1);
    assert!(client.get(TARBALL, &[ZSTD]).await.bytes() == &tarball.zstd);
    assert_eq!(site.origin.requests("object").len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_ahead_continues_when_the_memory_tier_is_full() {
    let site = Site::with(|config| {
        (config.cache.memory, config.cache.in_flight) = (bytesize::ByteSize::mib(24), bytesize::ByteSize::mib(16));
        config.cache.fill_idle = Duration::from_secs(3600);
    })
    .await;
    let (earlier, tarball) = (Tarball::random(1, 40 * FRAME), Tarball::random(2, 4 * FRAME));
    site.origin.publish("earlier", 7, 1, &earlier);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    assert!(client.get("/v1/services/earlier/tarball", &[ZSTD]).await.bytes() == &earlier.zstd);
    site.settled().await;
    assert!(site.in_use("memory_bytes") > f64::from(22 << 20));
    let (gate, requests) = (gate(), site.origin.requests("object").len());
    for frame in tarball.frames() {
        site.origin.fault_of(frame, Fault::Hold(gate.clone()));
    }
    let download = tokio::spawn(async move { client.get(TARBALL, &[ZSTD]).await });
    site.until("one is requested after the first", async || site.origin.requests("object").len() == requests + 3).await;
    gate.add_permits(4);
    assert!(download.await.unwrap().bytes() == &tarball.zstd);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_client_delays_no_other_and_continues_after_eviction() {
    let site = Site::with(|config| {
        config.cache.disk = bytesize::ByteSize::mib(30);
        config.cache.memory = bytesize::ByteSize::mib(4);
    })
    .await;
    let (tarball, other) = (Tarball::random(1, 24 * FRAME), Tarball::random(2, 24 * FRAME));
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.publish("other", 7, 1, &other);
    let mut stalled = Vec::new();
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &[ZSTD]).await;
        let first = read(&mut download, 1).await;
        stalled.push((version, client, download, first.len()));
    }
    let mut client = site.client("h2").await;
    assert!(client.get(TARBALL, &[ZSTD]).await.bytes() == &tarball.zstd);
    // Most of it is evicted while they have read next to nothing of it.
    assert!(client.get("/v1/services/other/tarball", &[ZSTD]).await.bytes() == &other.zstd);
    site.settled().await;
    assert!(site.metric("weir_edge_evictions_total", &[("reason", "size")]) > 10.0);
    for (version, client, download, read) in stalled {
        assert!(download.finish().await.bytes() == &tarball.zstd.slice(read..), "{version}");
        drop(client);
    }
    let held = || site.in_use("in_flight_bytes");
    site.until("the memory that they held is free", async || held() == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_fill_wakes_all_waiters_and_the_next_request_retries() {
    let (site, tarball) = Site::serving(300_000).await;
    let gate = gate();
    site.origin.faults([Fault::GateAndBreak(gate.clone()), Fault::Break(1), Fault::Break(1)]);
    let mut waiting = Vec::new();
    for number in 0..6 {
        let mut client = site.client(["h1", "h2", "h3"][number % 3]).await;
        waiting.push(tokio::spawn(async move { client.get(TARBALL, &[ZSTD]).await }));
    }
    site.until("all wait", async || site.in_use("fill_waiters") == 6.0).await;
    gate.add_permits(1);
    for reply in waiting {
        let reply = reply.await.unwrap();
        assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
        assert_eq!(reply.problem()["retryable"].as_bool(), Some(true));
    }
    assert_eq!((filled(&site, "broken"), retries(&site, "broken")), (1.0, 2.0));
    assert_eq!(site.client("h2").await.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    assert_eq!(site.new_files(), 0);
}

#[tokio::test]
async fn only_the_failed_frame_of_a_body_is_fetched_again() {
    let site = Site::with(|config| config.cache.fill_idle = Duration::from_millis(1500)).await;
    let tarball = Tarball::random(1, 6 * FRAME);
    site.origin.publish("shop", 7, 1, &tarball);
    let frames = tarball.frames();
    site.origin.fault_of(frames[1], Fault::Break(FRAME / 2));
    site.origin.fault_of(frames[2], Fault::Gate(gate()));
    site.origin.fault_of(frames[3], Fault::Flip);
    site.origin.fault_of(frames[4], Fault::Longer);
    site.origin.fault_of(frames[5], Fault::Refuse(0));
    assert!(site.client("h2").await.get(TARBALL, &[ZSTD]).await.bytes() == &tarball.zstd);
    for (reason, times) in [("broken", 1.0), ("slow", 1.0), ("corrupt", 2.0), ("origin_failed", 1.0)] {
        assert_eq!(retries(&site, reason), times, "{reason}");
    }
    let requests = site.origin.requests("object");
    let times = |frame| requests.iter().filter(|requests| requests.object == Some(frame)).count();
    assert_eq!(frames.into_iter().map(times).collect::<Vec<_>>(), [1, 2, 2, 2, 2, 2]);
    assert_eq!(
        requests.iter().filter(|requests| requests.no_cache).count(),
        2,
        "behind wrong bytes caches are passed by"
    );
    site.settled().await;
    assert_eq!((site.object_files().len(), site.new_files()), (7, 0));
}

#[tokio::test]
async fn an_object_is_served_before_its_stream_ends() {
    let site = Site::with(|config| config.cache.fill_idle = Duration::from_secs(3600)).await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.faults([Fault::EndLate(gate())]);
    assert_eq!(site.client("h2").await.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
}

#[tokio::test]
async fn a_request_times_out_and_the_fill_continues() {
    let site = Site::with(|config| config.cache.fill_wait = Duration::from_millis(200)).await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = gate();
    site.origin.faults([Fault::Hold(gate.clone())]);
    let mut client = site.client("h2").await;
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    gate.add_permits(1);
    site.until("it is fetched", async || filled(&site, "ok") == 1.0).await;
    site.settled().await;
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("cache-status")), (&tarball.zstd, "edge-1; hit"));
    assert_eq!(site.origin.requests("object").len(), 1);
}

#[tokio::test]
async fn waiters_are_bounded() {
    let site = Site::with(|config| config.cache.waiters = 2).await;
    let (tarball, under_way) = (Tarball::random(1, 300_000), Tarball::random(2, 6 * FRAME));
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.publish("under-way", 7, 1, &under_way);
    let gate = gate();
    // What is fetched ahead fails; by then nobody else may wait.
    for frame in &under_way.frames()[1..] {
        site.origin.fault_of(*frame, Fault::Refuse(3600));
    }
    let mut client = site.client("h2").await;
    let mut begun = client.begin("GET", "/v1/services/under-way/tarball", &[ZSTD]).await;
    let first = read(&mut begun, 1).await;
    site.until("one ahead fails", async || filled(&site, "origin_failed") >= 1.0).await;
    site.origin.fault_of(tarball.named(), Fault::Hold(gate.clone()));
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut client = site.client("h2").await;
        waiting.push(tokio::spawn(async move { client.get(TARBALL, &[ZSTD]).await }));
    }
    site.until("two wait", async || site.in_use("fill_waiters") == 2.0).await;
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    assert_eq!(reply.problem()["type"], "urn:weir:problem:overloaded");
    assert_eq!(site.metric("weir_edge_fill_waiters_refused_total", &[]), 1.0);
    assert!(begun.finish().await.bytes() == &under_way.zstd.slice(first.len()..), "who reads already reads on");
    gate.add_permits(1);
    for reply in waiting {
        assert_eq!(reply.await.unwrap().bytes(), &tarball.zstd);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_origin_failure_resets_the_body_and_cached_objects_are_served() {
    let mut site = Site::start().await;
    let (cached, tarball) = (Tarball::random(1, 300_000), Tarball::random(2, 4 * FRAME));
    site.origin.publish("cached", 7, 1, &cached);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    client.get("/v1/services/cached/tarball", &[ZSTD]).await;
    site.origin.fault_of(tarball.frames()[2], Fault::Gate(gate()));
    let mut downloads = Vec::new();
    for (version, encoding) in
        [("h1", vec![ZSTD]), ("h2", vec![]), ("h3", vec![ZSTD]), ("h2", vec![("accept-encoding", "gzip")])]
    {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &encoding).await;
        let first = read(&mut download, FRAME).await;
        match encoding.first() {
            None => assert_eq!(first, tarball.tar.slice(..first.len())),
            Some(&ZSTD) => assert_eq!(first, tarball.zstd.slice(..first.len())),
            Some(_) => {}
        }
        downloads.push((client, download));
    }
    site.origin.go_down().await;
    for (_client, mut download) in downloads {
        assert!(read_until_reset(&mut download).await.len() <= 2 * FRAME, "it never ends cleanly");
    }
    assert_eq!(client.get("/v1/services/cached/tarball", &[ZSTD]).await.bytes(), &cached.zstd);
    site.origin.go_up().await;
    site.until("it is fetched when the origin is back", async || {
        client.get(TARBALL, &[ZSTD]).await.body.as_ref() == Ok(&tarball.zstd)
    })
    .await;
}

#[tokio::test]
async fn retry_after_of_an_origin_is_respected() {
    let site = Site::start().await;
    let (tarball, other) = (Tarball::random(1, 300_000), Tarball::random(2, 300_000));
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.publish("other", 7, 1, &other);
    let mut client = site.client("h2").await;
    site.origin.faults([Fault::Refuse(0), Fault::Refuse(0)]);
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    assert_eq!(retries(&site, "origin_failed"), 2.0);
    // Nobody waits that long.
    site.origin.faults([Fault::Refuse(3600)]);
    let reply = client.get("/v1/services/other/tarball", &[ZSTD]).await;
    assert_eq!((reply.status, site.origin.requests("object").len()), (503, 4));
    assert_eq!(client.get("/v1/services/other/tarball", &[ZSTD]).await.bytes(), &other.zstd);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_frame_counts_for_the_tier_that_it_came_from() {
    let mut site = Site::start().await;
    let text: Vec<u8> = (0..600_000u32).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
    let tarball = Tarball::in_frames(text, FRAME);
    site.origin.publish("shop", 7, 1, &tarball);
    assert_eq!(site.client("h2").await.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    site.settled().await;
    // The edge is restarted, and two frames are missing on its disk.
    site.stop_edge().await;
    let mut missing = 0;
    for frame in &tarball.frames()[2..4] {
        let file = site.object_file(frame);
        missing += file.metadata().unwrap().len();
        std::fs::remove_file(file).unwrap();
    }
    let before = site.origin.requests("object").len();
    site.start_edge().await;
    for (encoding, length) in [("zstd", tarball.zstd.len()), ("identity", tarball.tar.len())] {
        let reply = site.client("h2").await.get(TARBALL, &[("accept-encoding", encoding)]).await;
        assert_eq!(reply.bytes().len(), length);
        let sent = |tier| site.metric("weir_edge_sent_bytes_total", &[("tier", tier), ("encoding", encoding)]);
        let [memory, disk, origin] = ["memory", "disk", "origin"].map(sent);
        assert_eq!(memory + disk + origin, length as f64);
        match encoding {
            "zstd" => assert_eq!((memory, origin), (0.0, missing as f64)),
            _ => assert_eq!((disk, origin), (0.0, 0.0), "all frames are in memory"),
        }
        assert_eq!(site.origin.requests("object").len(), before + 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_request_fetches_only_its_frames() {
    let site = Site::start().await;
    let text: Vec<u8> = (0..600_000u32).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
    let tarball = Tarball::in_frames(text, FRAME);
    site.origin.publish("shop", 7, 1, &tarball);
    let range = |part: &Range<usize>| format!("bytes={}-{}", part.start, part.end - 1);
    for (version, part, frames) in
        [("h1", 2 * FRAME..2 * FRAME + 1, 1), ("h2", FRAME - 1..FRAME + 1, 3), ("h3", 5..9, 3)]
    {
        let mut client = site.client(version).await;
        let reply = client.get(TARBALL, &[("range", &range(&part))]).await;
        assert_eq!((reply.status, reply.bytes()), (206, &tarball.tar.slice(part.clone())), "{part:?}");
        assert_eq!(
            reply.header("content-range"),
            format!("bytes {}-{}/{}", part.start, part.end - 1, tarball.tar.len())
        );
        assert_eq!(site.origin.requests("object").len(), 1 + frames, "{part:?}: the manifest, and these");
    }
    let length = tarball.zstd.len();
    for part in [0..1, length / 2..length / 2 + 1000, length - 3..length] {
        let mut client = site.client("h2").await;
        let reply = client.get(TARBALL, &[ZSTD, ("range", &range(&part))]).await;
        assert_eq!((reply.status, reply.bytes() == &tarball.zstd.slice(part)), (206, true));
    }
    let reply = site.client("h2").await.get(TARBALL, &[("range", &format!("bytes={}-", tarball.tar.len()))]).await;
    assert_eq!((reply.status, reply.header("content-range")), (416, format!("bytes */{}", tarball.tar.len()).as_str()));
}

#[tokio::test]
async fn a_wrong_manifest_is_refused() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 3 * FRAME);
    // The descriptor says that the tar has another length than the manifest.
    let lying = tarball.clone().with_tar(tarball.tar.slice(1..));
    site.origin.publish("shop", 7, 1, &lying);
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    assert!(reply.problem()["detail"].as_str().unwrap().contains("manifest"), "{reply:?}");
    assert_eq!(site.origin.requests("object").len(), 1, "and nothing else is fetched");
}
