//! What a request is, and what it is not.

use std::time::Duration;

use weir_runtime::serve::QuicOptions;

use crate::peer::{Peer, Reply, answer};
use crate::site::Site;
use crate::wire::{self, DATA, GREASE, HEADERS, frame, get, head, section};

const FRAME_UNEXPECTED: u64 = 0x105;
const EXCESSIVE_LOAD: u64 = 0x107;
const REQUEST_INCOMPLETE: u64 = 0x10d;
const MESSAGE_ERROR: u64 = 0x10e;
const QPACK_DECOMPRESSION_FAILED: u64 = 0x200;

#[tokio::test]
async fn headers_may_arrive_in_any_chunks_after_unknown_frames() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    let request = [frame(GREASE, b""), frame(GREASE + 0x1f, &[0; 3000]), get("/")].concat();
    for size in [1, 7, 3000, request.len()] {
        let (mut sender, receiver) = peer.begin(&[]).await;
        for piece in request.chunks(size) {
            sender.write_all(piece).await.unwrap();
            // A piece is a packet of its own, or nearly so.
            tokio::task::yield_now().await;
        }
        sender.finish().unwrap();
        assert_eq!(answer(receiver).await, Reply::well(), "pieces of {size}");
    }
    // It is answered as soon as it is there, whatever may follow.
    let (_sender, receiver) = peer.begin(&request).await;
    assert_eq!(answer(receiver).await, Reply::well());
}

#[tokio::test]
async fn a_request_needs_no_settings_before_it() {
    let site = Site::start();
    assert_eq!(Peer::silent(&site).await.ask(&get("/")).await, Reply::well());
}

#[tokio::test]
async fn incomplete_headers_reset_their_stream_alone() {
    let options = QuicOptions { head_timeout: Duration::from_millis(300), ..QuicOptions::default() };
    let site = Site::with(&options);
    let (peer, _control) = Peer::polite(&site).await;
    let request = get("/");
    assert_eq!(peer.ask(&request).await, Reply::well());
    for end in [0, 1, 2, request.len() - 1] {
        assert_eq!(peer.ask(&request[..end]).await, Err(REQUEST_INCOMPLETE), "{end} bytes and the end");
    }
    for begun in [&request[..10], &frame(GREASE, b"x")] {
        let (_sender, receiver) = peer.begin(begun).await;
        assert_eq!(answer(receiver).await, Err(REQUEST_INCOMPLETE), "{begun:?} and silence");
    }
    assert_eq!(peer.ask(&request).await, Reply::well());
}

#[tokio::test]
async fn misplaced_frames_end_the_connection() {
    let site = Site::start();
    for misplaced in [DATA, wire::SETTINGS, wire::GOAWAY, 0x3, 0x5, 0xd, 0x2, 0x6, 0x8, 0x9] {
        let (peer, _control) = Peer::polite(&site).await;
        let _stream = peer.begin(&[frame(misplaced, &[0]), get("/")].concat()).await;
        assert_eq!(peer.closed().await, FRAME_UNEXPECTED, "{misplaced:#x}");
    }
}

#[tokio::test]
async fn a_malformed_request_is_reset_alone() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    for fields in [
        &[("Accept", "x")][..],
        &[(":method", "GET")],
        &[(":status", "200")],
        &[("connection", "close")],
        &[("transfer-encoding", "chunked")],
        &[("host", "another")],
        &[("x", "line\nbreak")],
    ] {
        assert_eq!(peer.ask(&head("GET", "/", fields)).await, Err(MESSAGE_ERROR), "{fields:?}");
    }
    let no_path = frame(HEADERS, &section(&[(":method", "GET"), (":scheme", "https"), (":authority", "localhost")]));
    for (request, what) in [
        (no_path, "no path"),
        (get(""), "an empty path"),
        (get("*"), "a path of OPTIONS"),
        (head("CONNECT", "/", &[]), "CONNECT"),
        (frame(HEADERS, &section(&[])), "nothing"),
    ] {
        assert_eq!(peer.ask(&request).await, Err(MESSAGE_ERROR), "{what}");
    }
    assert_eq!(peer.ask(&head("OPTIONS", "*", &[])).await, Ok(Reply { status: 404, body: None }));
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
}

#[tokio::test]
async fn a_section_that_cannot_be_decoded_ends_the_connection() {
    let site = Site::start();
    for section in [
        // A required insert count, an index into the dynamic table, one beyond the static table, a negative base, a
        // section that breaks off, a string that is no Huffman code.
        &[0x02, 0x00, 0x80][..],
        &[0x00, 0x00, 0x80],
        &[0x00, 0x00, 0xff, 0x24],
        &[0x00, 0x80, 0xd1],
        &[0x00, 0x00, 0x51, 0x0b, b'/'],
        &[0x00, 0x00, 0x51, 0x81, 0x00],
        &[],
    ] {
        let (peer, _control) = Peer::polite(&site).await;
        let _stream = peer.begin(&frame(HEADERS, section)).await;
        assert_eq!(peer.closed().await, QPACK_DECOMPRESSION_FAILED, "{section:?}");
    }
}

#[tokio::test]
async fn large_headers_are_431_and_large_frames_reset_their_stream() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    for size in [17 << 10, 60 << 10] {
        let (mut sender, receiver) = peer.begin(&[]).await;
        let request = head("GET", "/", &[("x-large", &"a".repeat(size))]);
        // The server may want no more of it before it is written.
        let writing = tokio::spawn(async move { sender.write_all(&request).await });
        let reply = answer(receiver).await.unwrap();
        assert_eq!(reply.status, 431, "{size}");
        assert!(reply.body.is_some());
        let _ = writing.await.unwrap();
    }
    let (_sender, receiver) = peer.begin(&[wire::integer(GREASE), wire::integer(1 << 60)].concat()).await;
    assert_eq!(answer(receiver).await, Err(EXCESSIVE_LOAD));
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
}

#[tokio::test]
async fn a_body_and_trailers_are_not_awaited() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    let trailers = frame(HEADERS, &section(&[("x-checksum", "1")]));
    let request = [get("/"), frame(DATA, b"some"), frame(DATA, b"more"), trailers].concat();
    assert_eq!(peer.ask(&request).await, Reply::well());
    // More than the server keeps, from a client that writes all before it reads.
    let (mut sender, receiver) = peer.begin(&get("/")).await;
    let written = sender.write_all(&frame(DATA, &vec![0; 8 << 20])).await;
    assert_eq!(written, Err(quinn::WriteError::Stopped(0x100u32.into())));
    assert_eq!(answer(receiver).await, Reply::well());
}

#[tokio::test]
async fn a_response_to_head_has_no_data() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    for path in ["/", "/big", "/endless", "/failing"] {
        let reply = peer.ask(&head("HEAD", path, &[])).await;
        assert_eq!(reply, Ok(Reply { status: 200, body: None }), "{path}");
    }
}
