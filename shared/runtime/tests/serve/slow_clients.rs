//! Clients that take their time: with what they ask, or with what they are answered.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::TransportConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_runtime::serve::{QuicOptions, TcpOptions};

use crate::http2::{
    CONTINUATION, DATA, END_HEADERS, HEADERS, Http2Peer, INITIAL_WINDOW_SIZE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    frame, request, section,
};
use crate::peer::{Peer, Reply, answer};
use crate::relay::Relay;
use crate::site::{PATIENCE, Site};
use crate::wire::get;

const CANCEL: u32 = 0x8;
const H3_INTERNAL_ERROR: u64 = 0x102;
const H3_NO_ERROR: u64 = 0x100;
const H3_REQUEST_CANCELLED: u64 = 0x10c;

/// How long these servers wait, for a head or for a reader.
const SOON: Duration = Duration::from_millis(400);

fn hasty() -> Site {
    let quic = QuicOptions { stall_timeout: SOON, head_timeout: SOON, ..QuicOptions::default() };
    Site::with_options(&quic, &TcpOptions { stall_timeout: SOON, head_timeout: SOON, ..TcpOptions::default() })
}

/// Writes a little every now and then, until the server has gone.
async fn trickle(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin, part: &[u8]) {
    let mut scratch = [0; 4096];
    tokio::time::timeout(PATIENCE, async {
        loop {
            tokio::select! {
                read = stream.read(&mut scratch) => if matches!(read, Ok(0) | Err(_)) { return },
                () = tokio::time::sleep(SOON / 20) => if stream.write_all(part).await.is_err() { return },
            }
        }
    })
    .await
    .expect("the server goes");
}

#[tokio::test]
async fn headers_that_trickle() {
    let site = hasty();
    // A handshake that never begins, heads that never end.
    trickle(site.tcp().await, &[0x16]).await;
    let mut http1 = site.tls(&[b"http/1.1"]).await;
    http1.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx: ").await.unwrap();
    trickle(http1, b"y").await;
    let mut peer = Http2Peer::connect(&site, &[]).await;
    peer.send(&frame(HEADERS, 0, 1, &section("GET", "/"))).await;
    peer.send(&frame(CONTINUATION, 0, 1, &[0])).await;
    peer.closed().await;
}

#[tokio::test]
async fn a_request_whose_body_never_ends_gets_a_response() {
    let site = hasty();
    let mut http1 = site.tls(&[b"http/1.1"]).await;
    http1.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nsome").await.unwrap();
    let mut answered = Vec::new();
    // The rest is not waited for.
    let read = tokio::time::timeout(PATIENCE, http1.read_to_end(&mut answered)).await;
    assert!(read.is_ok() && answered.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answered));

    let mut peer = Http2Peer::connect(&site, &[]).await;
    peer.send(&frame(HEADERS, END_HEADERS, 1, &section("POST", "/"))).await;
    assert_eq!(peer.next(DATA).await.unwrap().payload, b"well");
    // What is still to come is not wanted.
    let unwanted = peer.next(RST_STREAM).await.unwrap();
    assert_eq!((unwanted.stream, &unwanted.payload[..]), (1, &[0, 0, 0, 0][..]));
}

#[tokio::test]
async fn a_response_that_is_not_read_over_http_1() {
    let site = hasty();
    let mut http1 = site.tls(&[b"http/1.1"]).await;
    http1.write_all(b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    site.until("it is cut", || site.metric("weir_http_stalled_total", "h1") == 1).await;
    let mut rest = Vec::new();
    assert!(http1.read_to_end(&mut rest).await.is_err() || rest.len() < crate::site::BIG);
}

#[tokio::test]
async fn a_response_that_is_not_read_over_http_2() {
    let site = hasty();
    for window in [0, 1000] {
        let before = site.metric("weir_http_stalled_total", "h2");
        let mut peer = Http2Peer::connect(&site, &[(INITIAL_WINDOW_SIZE, window)]).await;
        peer.send(&request("GET", "/parts", 1)).await;
        let reset = peer.next(RST_STREAM).await.unwrap();
        assert_eq!((reset.stream, &reset.payload[..]), (1, &CANCEL.to_be_bytes()[..]), "window {window}");
        assert_eq!(site.metric("weir_http_stalled_total", "h2"), before + 1);
        // The connection lives on.
        peer.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])).await;
        peer.send(&request("GET", "/", 3)).await;
        assert_eq!(peer.next(DATA).await.unwrap().payload, b"well");
        // One that is waited for by its own handler is another matter.
        peer.send(&request("GET", "/wait", 5)).await;
        site.gate.reached(1).await;
        tokio::time::sleep(2 * SOON).await;
        site.gate.open(1);
        assert_eq!(peer.next(DATA).await.unwrap().payload, b"waited");
    }
}

/// Takes 16 KiB now and then, for twice as long as a client is waited for that takes nothing; then all the rest.
async fn take_slowly(site: &Site, path: &str, stall_timeout: Duration) {
    let mut peer = Http2Peer::connect(site, &[(INITIAL_WINDOW_SIZE, 0)]).await;
    // What one stream takes is all that holds it back.
    peer.send(&frame(WINDOW_UPDATE, 0, 0, &(1u32 << 20).to_be_bytes())).await;
    peer.send(&request("GET", path, 1)).await;
    let mut taken = 0;
    for _ in 0..10 {
        tokio::time::sleep(stall_timeout / 5).await;
        peer.send(&frame(WINDOW_UPDATE, 0, 1, &16_384u32.to_be_bytes())).await;
        let expected = taken + 16_384;
        while taken < expected {
            taken += peer.next(DATA).await.unwrap().payload.len();
        }
    }
    assert_eq!(taken, 10 * 16_384);
    for stream in [0, 1] {
        peer.send(&frame(WINDOW_UPDATE, 0, stream, &(1u32 << 30).to_be_bytes())).await;
    }
    while taken < crate::site::BIG {
        taken += peer.next(DATA).await.unwrap().payload.len();
    }
}

#[tokio::test]
async fn a_response_that_is_read_slowly_but_steadily_completes() {
    // Not so soon: a machine that has much to do must not look like a client that takes nothing.
    let stall_timeout = Duration::from_secs(3);
    let site = Site::with_options(&QuicOptions::default(), &TcpOptions { stall_timeout, ..TcpOptions::default() });
    tokio::join!(take_slowly(&site, "/big", stall_timeout), take_slowly(&site, "/parts", stall_timeout));
    assert_eq!(site.metric("weir_http_stalled_total", "h2"), 0);
}

#[tokio::test]
async fn a_response_below_the_minimum_rate_is_reset_over_http_2() {
    let site = hasty();
    for path in ["/big", "/parts"] {
        let before = site.metric("weir_http_stalled_total", "h2");
        let mut peer = Http2Peer::connect(&site, &[(INITIAL_WINDOW_SIZE, 0)]).await;
        peer.send(&request("GET", path, 1)).await;
        let cut = async {
            while site.metric("weir_http_stalled_total", "h2") == before {
                peer.send(&frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes())).await;
                tokio::time::sleep(SOON / 20).await;
            }
        };
        tokio::time::timeout(PATIENCE, cut).await.expect("it is cut");
    }
}

#[tokio::test]
async fn a_response_below_the_minimum_rate_is_reset_over_http_3() {
    // Heads may take as long as they do on a machine that has much to do.
    let quic = QuicOptions { stall_timeout: SOON, ..QuicOptions::default() };
    let site = Site::with_options(&quic, &TcpOptions::default());
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(1000u32.into());
    let peer = Peer::with(&site, site.address, transport).await;
    // The second one takes some in every turn that it is given.
    for (bytes, pause) in [(500, SOON / 2), (50, SOON / 40)] {
        let (mut sender, mut receiver) = peer.begin(&get("/big")).await;
        sender.finish().unwrap();
        let cut = async {
            while receiver.read_chunk(bytes, true).await.is_ok() {
                tokio::time::sleep(pause).await;
            }
        };
        tokio::time::timeout(PATIENCE, cut).await.expect("it is cut");
    }
    assert_eq!(site.metric("weir_http_stalled_total", "h3"), 2);
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
}

#[tokio::test]
async fn a_body_that_fails_ends_at_once_although_nothing_of_it_is_read() {
    // A client that takes nothing has longer than the test waits.
    let site = Site::start();
    let mut peer = Http2Peer::connect(&site, &[(INITIAL_WINDOW_SIZE, 0)]).await;
    peer.send(&request("GET", "/denied", 1)).await;
    site.gate.reached(1).await;
    site.gate.open(1);
    assert_eq!(peer.next(RST_STREAM).await.unwrap().stream, 1);

    let mut transport = TransportConfig::default();
    transport.stream_receive_window(1000u32.into());
    let peer = Peer::with(&site, site.address, transport).await;
    let (mut sender, receiver) = peer.begin(&get("/denied")).await;
    sender.finish().unwrap();
    site.gate.reached(1).await;
    site.gate.open(1);
    let ended = tokio::time::timeout(PATIENCE, answer(receiver)).await.expect("it ends");
    assert_eq!(ended, Err(H3_INTERNAL_ERROR));
}

#[tokio::test]
async fn a_response_that_is_not_read_over_http_3() {
    let site = hasty();
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(1000u32.into());
    let peer = Peer::with(&site, site.address, transport).await;
    let (mut sender, receiver) = peer.begin(&get("/big")).await;
    sender.finish().unwrap();
    site.until("it is cut", || site.metric("weir_http_stalled_total", "h3") == 1).await;
    assert_eq!(answer(receiver).await, Err(H3_REQUEST_CANCELLED));
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_responses_over_http_3_all_progress() {
    let site = Site::start();
    // Far away: what is on its way to the client is what holds the server back.
    let relay = Relay::with_delay(site.address, SOON / 8).await;
    let mut transport = TransportConfig::default();
    transport.stream_receive_window((16u32 << 20).into()).receive_window((64u32 << 20).into());
    let peer = Peer::with(&site, relay.address, transport).await;
    let taken: [AtomicUsize; 5] = Default::default();
    let mut readers = FuturesUnordered::new();
    for (reader, taken) in taken.iter().enumerate() {
        let (mut sender, mut receiver) = peer.begin(&get("/parts")).await;
        sender.finish().unwrap();
        readers.push(async move {
            while taken.load(Ordering::Relaxed) < crate::site::BIG / 2 {
                let chunk = receiver.read_chunk(usize::MAX, true).await.unwrap().unwrap();
                taken.fetch_add(chunk.bytes.len(), Ordering::Relaxed);
            }
            reader
        });
    }
    let first = tokio::time::timeout(2 * PATIENCE, readers.next()).await.unwrap().unwrap();
    let taken: Vec<usize> = taken.iter().map(|taken| taken.load(Ordering::Relaxed)).collect();
    for (reader, bytes) in taken.iter().enumerate() {
        assert!(*bytes > taken[first] / 4, "reader {reader} was left behind: {taken:?}");
    }
}

#[tokio::test]
async fn a_client_without_a_request_is_disconnected() {
    let site = hasty();
    let (quic, _control) = Peer::polite(&site).await;
    let mut http2 = Http2Peer::connect(&site, &[]).await;
    let mut http1 = site.tls(&[b"http/1.1"]).await;
    http2.closed().await;
    assert_eq!(tokio::time::timeout(PATIENCE, http1.read(&mut [0])).await.unwrap().unwrap_or(0), 0);
    assert_eq!(quic.closed().await, H3_NO_ERROR);

    // A client that has sent a request may be idle before the next one.
    let mut http1 = site.tls(&[b"http/1.1"]).await;
    for _ in 0..2 {
        http1.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"well") {
            assert_ne!(http1.read_buf(&mut answer).await.unwrap(), 0);
        }
        tokio::time::sleep(2 * SOON).await;
    }
}

#[tokio::test]
async fn a_client_without_an_accepted_request_is_disconnected() {
    let site = hasty();
    let late = |transport: &str| site.limited(transport, "first_request");
    let (quic, _control) = Peer::polite(&site).await;
    assert_eq!(quic.ask(&get("/missing")).await, Ok(Reply { status: 404, body: None }));
    let mut http2 = Http2Peer::connect(&site, &[]).await;
    http2.send(&request("GET", "/missing", 1)).await;
    let mut http1 = site.tls(&[b"http/1.1"]).await;
    http1.write_all(b"GET /missing HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    http2.closed().await;
    let mut answer = Vec::new();
    // The end may come without a notification of TLS.
    let _ = tokio::time::timeout(PATIENCE, http1.read_to_end(&mut answer)).await.expect("the server closes it");
    assert!(answer.starts_with(b"HTTP/1.1 404 "), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(quic.closed().await, H3_NO_ERROR);
    assert_eq!((late("tcp"), late("quic")), (2, 1));

    // A first request that takes longer still gets its response.
    let (quic, _control) = Peer::polite(&site).await;
    let (_sender, response) = quic.begin(&get("/wait")).await;
    let mut http2 = Http2Peer::connect(&site, &[]).await;
    http2.send(&request("GET", "/wait", 1)).await;
    let mut http1 = site.tls(&[b"http/1.1"]).await;
    http1.write_all(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    site.until("all are late", || (late("tcp"), late("quic")) == (4, 2)).await;
    site.gate.open(3);
    assert_eq!(crate::peer::answer(response).await.unwrap().status, 200);
    assert_eq!(http2.status().await, 200);
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, http1.read_to_end(&mut answer)).await.expect("the server closes it");
    assert!(answer.ends_with(b"waited"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_cancelled_request_over_http_3_frees_its_handler() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    let (_sender, mut receiver) = peer.begin(&get("/wait")).await;
    site.gate.reached(1).await;
    receiver.stop(0x10c_u32.into()).unwrap();
    // Its place is free again, with nobody having opened the gate.
    site.until("it is given up", || site.gate.left() == 1).await;
}
