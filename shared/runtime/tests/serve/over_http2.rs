//! HTTP/2: concurrent requests, and failed ones.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2Peer, RST_STREAM, field, frame, request, section,
};
use crate::site::Site;

async fn connect(site: &Site) -> SendRequest<Empty<Bytes>> {
    let stream = site.tls(&[b"h2"]).await;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn ask(mut sender: SendRequest<Empty<Bytes>>, path: &str) -> hyper::Result<Bytes> {
    sender.ready().await?;
    let request = Request::get(format!("http://site{path}")).body(Empty::new()).unwrap();
    Ok(sender.send_request(request).await?.into_body().collect().await?.to_bytes())
}

#[tokio::test]
async fn a_failed_response_resets_its_stream_alone_over_http_2() {
    let site = Site::start();
    let sender = connect(&site).await;
    let waiting = tokio::spawn(ask(sender.clone(), "/wait"));
    site.gate.reached(1).await;
    let asked = |path| ask(sender.clone(), path);
    let (first, panic, failing, last) = tokio::join!(asked("/"), asked("/panic"), asked("/failing"), asked("/"));
    assert_eq!(first.unwrap(), "well");
    assert!(panic.is_err() && failing.is_err() && asked("/panic-at-once").await.is_err());
    assert_eq!(last.unwrap(), "well");
    site.gate.open(1);
    assert_eq!(waiting.await.unwrap().unwrap(), "waited");
}

#[tokio::test]
async fn a_drain_finishes_waiting_requests_over_http_2() {
    let site = Site::start();
    let sender = connect(&site).await;
    let waiting = tokio::spawn(ask(sender.clone(), "/wait"));
    site.gate.reached(1).await;
    let finished = site.finish();
    site.gate.open(1);
    assert_eq!(waiting.await.unwrap().unwrap(), "waited");
    assert!(finished.await, "nothing was cut");
}

/// curl 7.88, for one, takes the reset of a stream that it still writes to for a failure, and shows no answer.
#[tokio::test]
async fn a_response_waits_for_the_rest_of_its_request() {
    let site = Site::start();
    for path in ["/", "/nothing-is-here"] {
        let mut peer = Http2Peer::connect(&site, &[]).await;
        peer.send(&frame(HEADERS, END_HEADERS, 1, &section("POST", path))).await;
        peer.send(&frame(DATA, 0, 1, &[b'x'; 1000])).await;
        // Later requests get their responses before it.
        peer.send(&request("GET", "/", 3)).await;
        assert_eq!(peer.next(HEADERS).await.unwrap().stream, 3, "{path}");
        peer.send(&frame(DATA, END_STREAM, 1, &[b'x'; 1000])).await;
        assert_eq!(peer.next(HEADERS).await.unwrap().stream, 1, "{path}");
        peer.send(&request("GET", "/", 5)).await;
        while let Some(frame) = peer.frame().await {
            assert_ne!(frame.kind, RST_STREAM, "{path}");
            if (frame.kind, frame.stream) == (HEADERS, 5) {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_the_client_holds_back_is_not_awaited() {
    let site = Site::start();
    let expecting = || [section("POST", "/"), field("expect", "100-continue")].concat();
    for open in [section("GET", "/"), section("HEAD", "/"), section("GET", "/nothing-is-here"), expecting()] {
        let mut peer = Http2Peer::connect(&site, &[]).await;
        // For this one it is waited.
        peer.send(&frame(HEADERS, END_HEADERS, 1, &section("POST", "/"))).await;
        peer.send(&request("GET", "/", 3)).await;
        assert_eq!(peer.next(HEADERS).await.unwrap().stream, 3);
        peer.send(&frame(HEADERS, END_HEADERS, 5, &open)).await;
        assert_eq!(peer.next(HEADERS).await.unwrap().stream, 5, "{}", String::from_utf8_lossy(&open));
    }
}

/// More than is taken of a body that nobody reads, and less than may be on its way.
fn much_and_no_end() -> Vec<u8> {
    let head = frame(HEADERS, END_HEADERS, 1, &section("POST", "/nothing-is-here"));
    let data = std::iter::repeat_n(frame(DATA, 0, 1, &[b'x'; 16 << 10]), 40).flatten();
    head.into_iter().chain(data).collect()
}

#[tokio::test]
async fn a_long_unread_body_gets_a_response_and_its_connection_stays_open() {
    let site = Site::start();
    let mut peer = Http2Peer::polite(&site).await;
    peer.send(&much_and_no_end()).await;
    let answer = peer.next(HEADERS).await.unwrap();
    // 404, from the table.
    assert_eq!((answer.stream, answer.payload[0]), (1, 0x8d));
    let unwanted = peer.next(RST_STREAM).await.unwrap();
    assert_eq!((unwanted.stream, &unwanted.payload[..]), (1, &[0, 0, 0, 0][..]));
    peer.send(&request("GET", "/", 3)).await;
    assert_eq!(peer.next(DATA).await.unwrap().payload, b"well");
}

#[tokio::test]
async fn a_client_that_exceeds_its_window_is_reset_and_others_are_served() {
    const FLOW_CONTROL_ERROR: u32 = 3;
    let site = Site::start();
    let mut other = Http2Peer::polite(&site).await;
    let mut rude = Http2Peer::connect(&site, &[]).await;
    rude.send(&much_and_no_end()).await;
    // Of the stream or of the connection, depending on whether the server has announced the larger window by then.
    let code = loop {
        let frame = rude.frame().await.expect("the error is sent");
        match frame.kind {
            RST_STREAM => break u32::from_be_bytes(frame.payload[..4].try_into().unwrap()),
            GOAWAY => break u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()),
            _ => {}
        }
    };
    assert_eq!(code, FLOW_CONTROL_ERROR);
    other.send(&request("GET", "/", 1)).await;
    assert_eq!(other.next(DATA).await.unwrap().payload, b"well");
}
