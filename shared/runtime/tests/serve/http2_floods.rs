//! What is done to HTTP/2 servers: the connection it is done on is closed or held back, and others are served.

use crate::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Http2Peer, PING, RST_STREAM, SETTINGS, field, frame, request,
    section,
};
use crate::site::Site;

const PROTOCOL_ERROR: u32 = 0x1;
const REFUSED_STREAM: u32 = 0x7;
const CANCEL: u32 = 0x8;
const ENHANCE_YOUR_CALM: u32 = 0xb;

async fn others_are_served(site: &Site) {
    let mut other = Http2Peer::connect(site, &[]).await;
    other.send(&request("GET", "/", 1)).await;
    assert_eq!(other.next(DATA).await.unwrap().payload, b"well");
}

#[tokio::test]
async fn rapid_reset() {
    let site = Site::start();
    let mut peer = Http2Peer::connect(&site, &[]).await;
    let mut bytes = Vec::new();
    for stream in (1..2000).step_by(2) {
        bytes.extend(request("GET", "/wait", stream));
        bytes.extend(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }
    peer.send(&bytes).await;
    assert_eq!(peer.closed().await, Some(ENHANCE_YOUR_CALM));
    assert!(site.gate.began() < 100, "{} requests reached the handler", site.gate.began());
    others_are_served(&site).await;
}

#[tokio::test]
async fn headers_without_end() {
    let site = Site::start();
    for part in [field("x", &"y".repeat(16_000)), Vec::new()] {
        let mut peer = Http2Peer::connect(&site, &[]).await;
        peer.send(&frame(HEADERS, END_STREAM, 1, &section("GET", "/"))).await;
        peer.flood("CONTINUATION", || frame(CONTINUATION, 0, 1, &part)).await;
        let code = peer.closed().await;
        assert!(matches!(code, None | Some(ENHANCE_YOUR_CALM | PROTOCOL_ERROR)), "{code:?}");
        others_are_served(&site).await;
    }
}

#[tokio::test]
async fn a_flood_of_useless_frames() {
    let site = Site::start();
    for (what, frame) in [
        ("PING", frame(PING, 0, 0, &[0; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])),
        ("empty DATA", frame(DATA, 0, 1, &[])),
    ] {
        let mut peer = Http2Peer::connect(&site, &[]).await;
        peer.send(&frame_of_a_body()).await;
        site.gate.reached(1).await;
        // Nothing of what the server answers is read.
        peer.flood(what, || frame.clone()).await;
        others_are_served(&site).await;
        site.gate.open(1);
    }
}

/// A request that waits, with a body to come.
fn frame_of_a_body() -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 1, &section("POST", "/wait"))
}

#[tokio::test]
async fn streams_above_the_limit() {
    let site = Site::start();
    let mut peer = Http2Peer::connect(&site, &[]).await;
    let bytes: Vec<u8> = (0..200).flat_map(|n| request("GET", "/wait", 2 * n + 1)).collect();
    peer.send(&bytes).await;
    site.gate.reached(128).await;
    let refused = peer.next(RST_STREAM).await.unwrap();
    assert_eq!((refused.stream, refused.payload), (257, REFUSED_STREAM.to_be_bytes().to_vec()));
    site.gate.open(128);
    // Those that were let in are answered.
    for _ in 0..128 {
        assert_eq!(peer.next(DATA).await.unwrap().payload, b"waited");
    }
    assert_eq!(site.gate.began(), 128);
}

#[tokio::test]
async fn headers_above_the_limit_are_431() {
    let site = Site::start();
    let mut peer = Http2Peer::connect(&site, &[]).await;
    let large = field("x", &"y".repeat(15_000));
    peer.send(&frame(HEADERS, END_STREAM, 1, &[section("GET", "/"), large.clone()].concat())).await;
    peer.send(&frame(CONTINUATION, END_HEADERS, 1, &large)).await;
    assert_eq!(peer.status().await, 431);
    others_are_served(&site).await;
}
