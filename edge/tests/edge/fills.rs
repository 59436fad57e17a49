//! Fills: one per blob, for all who want it, piece by verified piece, while an origin and clients do what they do.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Semaphore;

use crate::client::Download;
use crate::site::{PATIENCE, Site, TARBALL, ZSTD};
use crate::test_origin::{Fault, Lists, Tarball};

const PIECE: usize = 1 << 20;

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

/// A question for a part of a blob.
fn part(range: std::ops::Range<usize>) -> (Option<String>, bool) {
    (Some(format!("bytes={}-{}", range.start, range.end - 1)), false)
}

/// A question for all of a blob from a byte on.
fn from(first: usize) -> (Option<String>, bool) {
    (Some(format!("bytes={first}-")), false)
}

/// What was asked of the origin for blobs: from where, and past caches or not.
fn asked(site: &Site) -> Vec<(Option<String>, bool)> {
    site.origin.asked("blob").into_iter().map(|asked| (asked.range, asked.no_cache)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_stream_before_the_fill_ends() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 4 * PIECE);
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = gate();
    site.origin.faults([Fault::Gate(gate.clone())]);
    // The second half comes when all have the first one.
    let have_half = Arc::new(Semaphore::new(0));
    let mut downloads = Vec::new();
    for number in 0..30 {
        let mut client = site.client(["h1", "h2", "h3"][number % 3]).await;
        let have_half = have_half.clone();
        let encoding = if number % 5 == 0 { vec![] } else { vec![ZSTD] };
        downloads.push(tokio::spawn(async move {
            let mut download = client.begin("GET", TARBALL, &encoding).await;
            // Decoded bytes are handed over a block after the coded ones.
            let mut bytes = BytesMut::from(&read(&mut download, 2 * PIECE - (256 << 10)).await[..]);
            have_half.add_permits(1);
            bytes.extend_from_slice(&download.finish().await.body.unwrap());
            bytes.freeze()
        }));
    }
    have_half.acquire_many(30).await.unwrap().forget();
    assert_eq!(site.metric("weir_edge_fills_total", &[]), 0.0, "it is under way");
    assert_eq!(site.metric("weir_edge_fill_waiters", &[]), 0.0, "nobody waits for a first byte");
    assert_eq!(site.metric("weir_edge_fill_first_byte_seconds", &[]), 1.0);
    gate.add_permits(1);
    for (number, download) in downloads.into_iter().enumerate() {
        let expected = if number % 5 == 0 { &tarball.tar } else { &tarball.zstd };
        assert!(download.await.unwrap() == expected, "{number}");
    }
    assert_eq!((site.origin.asked("blob").len(), site.origin.asked("pieces").len()), (2, 1));
    assert_eq!(site.metric("weir_edge_pieces_verified_total", &[]), 5.0);
}

#[tokio::test]
async fn a_client_that_bails_leaves_a_warm_cache() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 4 * PIECE);
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = gate();
    site.origin.faults([Fault::Gate(gate.clone())]);
    let mut client = site.client("h2").await;
    let mut download = client.begin("GET", TARBALL, &[ZSTD]).await;
    read(&mut download, 1).await;
    drop((download, client));
    gate.add_permits(1);
    site.until("it is filled", async || site.metric("weir_edge_fills_total", &[("result", "ok")]) == 1.0).await;
    site.settled().await;
    let reply = site.client("h3").await.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("cache-status")), (&tarball.zstd, "edge-1; hit"));
    assert_eq!(asked(&site), [part(0..PIECE), from(PIECE)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stalls_holds_back_nobody_and_reads_on_when_its_blob_is_gone() {
    let site = Site::with(|config| config.cache.disk = bytesize::ByteSize::mib(30)).await;
    let (tarball, other) = (Tarball::random(1, 24 * PIECE), Tarball::random(2, 24 * PIECE));
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.publish("other", 7, 1, &other);
    let gate = gate();
    site.origin.faults([Fault::Gate(gate.clone())]);
    let mut stalled = Vec::new();
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &[ZSTD]).await;
        let first = read(&mut download, 1).await;
        stalled.push((version, client, download, first.len()));
    }
    let mut client = site.client("h2").await;
    let mut quick = client.begin("GET", TARBALL, &[ZSTD]).await;
    let first = read(&mut quick, 10 * PIECE).await;
    gate.add_permits(1);
    assert!(quick.finish().await.bytes() == &tarball.zstd.slice(first.len()..));
    // It is evicted while they have read next to nothing of it.
    assert!(client.get("/v1/services/other/tarball", &[ZSTD]).await.bytes() == &other.zstd);
    site.settled().await;
    assert_eq!(site.metric("weir_edge_evictions_total", &[("reason", "size")]), 1.0);
    for (version, client, download, read) in stalled {
        assert!(download.finish().await.bytes() == &tarball.zstd.slice(read..), "{version}");
        drop(client);
    }
    assert_eq!(asked(&site), vec![[part(0..PIECE), from(PIECE)]; 2].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_fails_releases_all_and_the_next_one_begins_anew() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = gate();
    site.origin.faults([Fault::GateAndBreak(gate.clone()), Fault::Break(1), Fault::Break(1)]);
    let mut waiting = Vec::new();
    for number in 0..6 {
        let mut client = site.client(["h1", "h2", "h3"][number % 3]).await;
        waiting.push(tokio::spawn(async move { client.get(TARBALL, &[ZSTD]).await }));
    }
    site.until("all wait", async || site.metric("weir_edge_fill_waiters", &[]) == 6.0).await;
    gate.add_permits(1);
    for reply in waiting {
        let reply = reply.await.unwrap();
        assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
        assert_eq!(reply.problem()["retryable"].as_bool(), Some(true));
    }
    assert_eq!(site.metric("weir_edge_fills_total", &[("result", "broken")]), 1.0);
    assert_eq!(site.client("h2").await.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
}

#[tokio::test]
async fn a_leader_that_stalls_is_resumed_from_where_its_bytes_end() {
    let site = Site::with(|config| config.cache.fill_idle = Duration::from_millis(1500)).await;
    let tarball = Tarball::random(1, 4 * PIECE);
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.faults([Fault::Gate(gate())]);
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &tarball.zstd);
    let half = tarball.zstd.len() / 2;
    assert_eq!(asked(&site), [part(0..PIECE), from(PIECE), from(half)]);
    assert_eq!(site.metric("weir_edge_fill_resumes_total", &[("reason", "stalled")]), 1.0);
    site.settled().await;
    assert_eq!(site.metric("weir_edge_fills_total", &[("result", "ok")]), 1.0);
}

#[tokio::test]
async fn what_has_come_is_handed_on_before_its_origin_says_that_there_is_no_more() {
    let site = Site::with(|config| config.cache.fill_idle = Duration::from_secs(3600)).await;
    let gate = gate();
    for (service, bytes) in [("small", 300_000), ("large", 3 * PIECE)] {
        let tarball = Tarball::random(1, bytes);
        site.origin.publish(service, 7, 1, &tarball);
        site.origin.faults([Fault::EndLate(gate.clone()), Fault::EndLate(gate.clone())]);
        let path = format!("/v1/services/{service}/tarball");
        assert_eq!(site.client("h2").await.get(&path, &[ZSTD]).await.bytes(), &tarball.zstd, "{service}");
    }
    site.settled().await;
    assert_eq!(site.metric("weir_edge_fills_total", &[("result", "ok")]), 2.0);
}

#[tokio::test]
async fn a_request_waits_for_a_leader_no_longer_than_allowed_and_the_fill_goes_on() {
    let site = Site::with(|config| config.cache.fill_wait = Duration::from_millis(200)).await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = gate();
    site.origin.faults([Fault::Hold(gate.clone())]);
    let mut client = site.client("h2").await;
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    gate.add_permits(1);
    site.until("it is filled", async || site.metric("weir_edge_fills_total", &[("result", "ok")]) == 1.0).await;
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("cache-status")), (&tarball.zstd, "edge-1; hit"));
    assert_eq!(site.origin.asked("blob").len(), 1);
}

#[tokio::test]
async fn those_who_wait_for_a_blob_are_bounded() {
    let site = Site::with(|config| config.cache.waiters_per_fill = 2).await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = gate();
    site.origin.faults([Fault::Hold(gate.clone())]);
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut client = site.client("h2").await;
        waiting.push(tokio::spawn(async move { client.get(TARBALL, &[ZSTD]).await }));
    }
    site.until("two wait", async || site.metric("weir_edge_fill_waiters", &[]) == 2.0).await;
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    assert_eq!(site.metric("weir_edge_fill_waiters_refused_total", &[]), 1.0);
    gate.add_permits(1);
    for reply in waiting {
        assert_eq!(reply.await.unwrap().bytes(), &tarball.zstd);
    }
}

#[tokio::test]
async fn an_origin_that_dies_in_mid_body_is_resumed_and_nobody_notices() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 4 * PIECE);
    site.origin.publish("shop", 7, 1, &tarball);
    let first = 2 * PIECE + 100_000;
    site.origin.faults([Fault::Break(first - PIECE), Fault::Break(PIECE), Fault::Break(10)]);
    // More breaks than attempts in a row, with a piece between them.
    let reply = site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &tarball.zstd);
    let second = first + PIECE;
    let expected = [part(0..PIECE), from(PIECE), from(first), from(second), from(second + 10)];
    assert_eq!(asked(&site), expected);
    assert_eq!(site.metric("weir_edge_fill_resumes_total", &[("reason", "broken")]), 3.0);
    assert_eq!(site.metric("weir_edge_verify_failures_total", &[]), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_origin_that_dies_in_mid_body_for_good_is_a_reset_and_what_is_held_is_served_on() {
    let mut site = Site::start().await;
    let (held, tarball) = (Tarball::random(1, 300_000), Tarball::random(2, 4 * PIECE));
    site.origin.publish("held", 7, 1, &held);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    client.get("/v1/services/held/tarball", &[ZSTD]).await;
    site.origin.faults([Fault::Gate(gate())]);
    let mut downloads = Vec::new();
    for (version, encoding) in [("h1", vec![ZSTD]), ("h2", vec![ZSTD]), ("h3", vec![ZSTD]), ("h2", vec![])] {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &encoding).await;
        let first = read(&mut download, PIECE).await;
        let whole = if encoding.is_empty() { &tarball.tar } else { &tarball.zstd };
        assert_eq!(first, whole.slice(..first.len()), "{version}: what has come is right");
        downloads.push((version, client, download));
    }
    site.origin.go_down().await;
    for (version, client, download) in downloads {
        let reply = tokio::time::timeout(PATIENCE, download.finish()).await.unwrap();
        assert!(reply.body.is_err(), "{version}: it is reset, and never ends cleanly");
        drop(client);
    }
    assert_eq!(client.get("/v1/services/held/tarball", &[ZSTD]).await.bytes(), &held.zstd);
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    site.until("nothing is left behind", async || site.incoming_files() == 0).await;
    site.origin.go_up().await;
    site.until("it is fetched when the origin is back", async || client.get(TARBALL, &[ZSTD]).await.status == 200)
        .await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_is_behind_gets_what_had_come_before_its_fill_failed() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 40 * PIECE);
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = gate();
    site.origin.faults([Fault::GateAndBreak(gate.clone()), Fault::Break(1), Fault::Break(1)]);
    let mut behind = Vec::new();
    for version in ["h2", "h3"] {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &[ZSTD]).await;
        let first = read(&mut download, 1).await;
        behind.push((version, client, download, BytesMut::from(&first[..])));
    }
    site.until("half has come", async || site.metric("weir_edge_pieces_verified_total", &[]) == 20.0).await;
    gate.add_permits(1);
    site.until("it has failed", async || site.metric("weir_edge_fills_total", &[("result", "broken")]) == 1.0).await;
    for (version, client, mut download, mut got) in behind {
        let end = loop {
            match download.next().await {
                Some(Ok(part)) => got.extend_from_slice(&part),
                end => break end,
            }
        };
        assert!(matches!(end, Some(Err(_))), "{version}: it is reset");
        // A reset may overtake the last of it.
        assert!(got.len() > 17 * PIECE && got == tarball.zstd.slice(..got.len()), "{version}: {}", got.len());
        drop(client);
    }
}

#[tokio::test]
async fn an_overloaded_origin_is_asked_again_when_it_wants_to_be() {
    let site = Site::start().await;
    let (tarball, other) = (Tarball::random(1, 300_000), Tarball::random(2, 300_000));
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.publish("other", 7, 1, &other);
    let mut client = site.client("h2").await;
    site.origin.faults([Fault::Refuse(0), Fault::Refuse(0)]);
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    assert_eq!(site.metric("weir_edge_fill_resumes_total", &[("reason", "refused")]), 2.0);
    // Nobody waits that long.
    site.origin.faults([Fault::Refuse(3600)]);
    let reply = client.get("/v1/services/other/tarball", &[ZSTD]).await;
    assert_eq!((reply.status, site.origin.asked("blob").len()), (503, 4));
    assert_eq!(client.get("/v1/services/other/tarball", &[ZSTD]).await.bytes(), &other.zstd);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_during_a_fill_is_served_as_soon_as_its_bytes_are_there() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 4 * PIECE);
    site.origin.publish("shop", 7, 1, &tarball);
    let gate = gate();
    site.origin.faults([Fault::Gate(gate.clone())]);
    let range = |part: &std::ops::Range<usize>| format!("bytes={}-{}", part.start, part.end - 1);
    let mut client = site.client("h2").await;
    // The first of them begins the fill.
    for part in [5..6, PIECE - 1..PIECE + 1, PIECE..2 * PIECE] {
        let reply = client.get(TARBALL, &[ZSTD, ("range", &range(&part))]).await;
        assert_eq!((reply.status, reply.bytes()), (206, &tarball.zstd.slice(part.clone())), "{part:?}");
        assert_eq!(reply.header("content-length"), part.len().to_string());
    }
    let mut ahead = Vec::new();
    for (version, part) in
        [("h1", 3 * PIECE..3 * PIECE + 9), ("h2", 4 * PIECE + 1..4 * PIECE + 2), ("h3", 5..4 * PIECE)]
    {
        let mut client = site.client(version).await;
        let header = range(&part);
        ahead.push((part, tokio::spawn(async move { client.get(TARBALL, &[ZSTD, ("range", &header)]).await })));
    }
    // One of them has begun, the others are far ahead.
    site.until("they wait", async || site.metric("weir_edge_fill_waiters", &[]) == 2.0).await;
    assert_eq!(site.metric("weir_edge_fills_total", &[]), 0.0);
    gate.add_permits(1);
    for (part, reply) in ahead {
        let reply = reply.await.unwrap();
        assert_eq!((reply.status, reply.bytes() == &tarball.zstd.slice(part)), (206, true));
    }
    assert_eq!(asked(&site), [part(0..PIECE), from(PIECE)], "the origin was asked for all of it, once");
}

#[tokio::test]
async fn a_wrong_piece_reaches_nobody_and_is_asked_for_anew_from_its_beginning() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 4 * PIECE);
    site.origin.publish("shop", 7, 1, &tarball);
    site.origin.faults([Fault::FlipAt(2 * PIECE + 5)]);
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    let anew = (from(2 * PIECE).0, true);
    assert_eq!(asked(&site), [part(0..PIECE), from(PIECE), anew]);
    assert_eq!(site.metric("weir_edge_verify_failures_total", &[("where", "origin")]), 1.0);
    assert_eq!(site.metric("weir_edge_fill_resumes_total", &[("reason", "wrong_bytes")]), 1.0);

    let other = Tarball::random(2, 4 * PIECE);
    site.origin.publish("other", 7, 1, &other);
    for version in ["h1", "h2", "h3"] {
        site.origin.faults([Fault::FlipAt(2 * PIECE), Fault::FlipAt(3 * PIECE - 1)]);
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", "/v1/services/other/tarball", &[ZSTD]).await;
        let mut right = BytesMut::new();
        let end = loop {
            match download.next().await {
                Some(Ok(part)) => right.extend_from_slice(&part),
                end => break end,
            }
        };
        assert!(matches!(end, Some(Err(_))), "{version}: it is reset");
        assert!(right.len() <= 2 * PIECE && right == other.zstd.slice(..right.len()), "{version}");
        site.settled().await;
    }
    assert_eq!(site.metric("weir_edge_fills_total", &[("result", "corrupt")]), 3.0);
    let reply = client.get("/v1/services/other/tarball", &[ZSTD]).await;
    assert_eq!(reply.bytes(), &other.zstd, "the next one is good");
}

#[tokio::test]
async fn without_a_good_piece_list_a_blob_is_verified_as_a_whole() {
    let site = Site::start().await;
    let mut client = site.client("h2").await;
    for (seed, lists, failures) in [(1, Lists::None, 0.0), (2, Lists::Wrong, 1.0)] {
        site.origin.have_piece_lists(lists);
        let tarball = Tarball::random(seed, 3 * PIECE);
        let service = format!("s{seed}");
        site.origin.publish(&service, 7, 1, &tarball);
        let path = format!("/v1/services/{service}/tarball");
        let gate = gate();
        site.origin.faults([Fault::Gate(gate.clone())]);
        let mut early = site.client("h2").await;
        let early = tokio::spawn(async move { early.get(&path, &[ZSTD]).await });
        let half = (tarball.zstd.len() / 2) as f64;
        let received = site.metric("weir_edge_origin_received_bytes_total", &[]);
        site.until("half of it is there", async || {
            site.metric("weir_edge_origin_received_bytes_total", &[]) >= received + half
        })
        .await;
        assert_eq!(site.metric("weir_edge_fill_waiters", &[]), 1.0, "nobody gets what is not verified");
        gate.add_permits(1);
        assert_eq!(early.await.unwrap().bytes(), &tarball.zstd);
        assert_eq!(site.metric("weir_edge_verify_failures_total", &[]), failures);
    }
    // Wrong bytes then cost all of it once more.
    let tarball = Tarball::random(3, 3 * PIECE);
    site.origin.have_piece_lists(Lists::None);
    site.origin.publish("s3", 7, 1, &tarball);
    site.origin.faults([Fault::FlipAt(5)]);
    assert_eq!(client.get("/v1/services/s3/tarball", &[ZSTD]).await.bytes(), &tarball.zstd);
    let both = [part(0..PIECE), from(PIECE)];
    let anew = both.clone().map(|(range, _)| (range, true));
    assert_eq!(asked(&site)[4..], [both, anew].concat());
}
