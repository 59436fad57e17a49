//! The streams in one direction, and their rules.

use crate::peer::{Peer, Reply};
use crate::site::Site;
use crate::wire::{self, CONTROL, DECODER, ENCODER, GREASE, SETTINGS, frame};

const CANCEL_PUSH: u64 = 0x3;
const MAX_PUSH_ID: u64 = 0xd;

const STREAM_CREATION_ERROR: u64 = 0x103;
const CLOSED_CRITICAL_STREAM: u64 = 0x104;
const FRAME_UNEXPECTED: u64 = 0x105;
const FRAME_ERROR: u64 = 0x106;
const EXCESSIVE_LOAD: u64 = 0x107;
const ID_ERROR: u64 = 0x108;
const SETTINGS_ERROR: u64 = 0x109;
const MISSING_SETTINGS: u64 = 0x10a;
const QPACK_ENCODER_STREAM_ERROR: u64 = 0x201;
const QPACK_DECODER_STREAM_ERROR: u64 = 0x202;

#[tokio::test]
async fn the_server_begins_with_its_settings() {
    let site = Site::start();
    let (kind, payload) = Peer::silent(&site).await.control().await.frame().await;
    // The largest field section, and nothing about a dynamic table.
    assert_eq!((kind, payload), (SETTINGS, [wire::integer(6), wire::integer(16 << 10)].concat()));
}

#[tokio::test]
async fn a_violation_on_the_control_stream_ends_the_connection() {
    let site = Site::start();
    let settings = frame(SETTINGS, &[]);
    let after = |kind: u64, payload: &[u8]| [settings.clone(), frame(kind, payload)].concat();
    let mut cases = vec![
        (frame(GREASE, b"x"), MISSING_SETTINGS),
        (frame(wire::GOAWAY, &[0]), MISSING_SETTINGS),
        (after(SETTINGS, &[]), FRAME_UNEXPECTED),
        (frame(SETTINGS, &[0x40]), FRAME_ERROR),
        (frame(SETTINGS, &[0x03, 0x01]), SETTINGS_ERROR),
        ([wire::integer(SETTINGS), wire::integer(1 << 61)].concat(), EXCESSIVE_LOAD),
        (after(wire::GOAWAY, &[]), FRAME_ERROR),
        (after(wire::GOAWAY, &[0, 0]), FRAME_ERROR),
        (after(MAX_PUSH_ID, &[0; 9]), FRAME_ERROR),
        (after(CANCEL_PUSH, &[0]), ID_ERROR),
        // The one may only rise, the other may only fall.
        ([after(MAX_PUSH_ID, &[8]), frame(MAX_PUSH_ID, &[7])].concat(), ID_ERROR),
        ([after(wire::GOAWAY, &[8]), frame(wire::GOAWAY, &[8]), frame(wire::GOAWAY, &[9])].concat(), ID_ERROR),
    ];
    for misplaced in [wire::DATA, wire::HEADERS, 0x5, 0x2, 0x6, 0x8, 0x9] {
        cases.push((after(misplaced, &[]), FRAME_UNEXPECTED));
    }
    for (bytes, code) in cases {
        let peer = Peer::silent(&site).await;
        let _control = peer.uni(CONTROL, &bytes).await;
        assert_eq!(peer.closed().await, code, "{bytes:?}");
    }
}

#[tokio::test]
async fn a_second_critical_stream_or_a_push_stream_ends_the_connection() {
    let site = Site::start();
    for kind in [CONTROL, ENCODER, DECODER] {
        let peer = Peer::silent(&site).await;
        let bytes = if kind == CONTROL { frame(SETTINGS, &[]) } else { Vec::new() };
        let _first = peer.uni(kind, &bytes).await;
        let _second = peer.uni(kind, &bytes).await;
        assert_eq!(peer.closed().await, STREAM_CREATION_ERROR, "{kind}");
    }
    let peer = Peer::silent(&site).await;
    let _push = peer.uni(0x1, &[0]).await;
    assert_eq!(peer.closed().await, STREAM_CREATION_ERROR);
}

#[tokio::test]
async fn a_critical_stream_stays_open() {
    let site = Site::start();
    for kind in [CONTROL, ENCODER, DECODER] {
        for is_reset in [false, true] {
            let peer = Peer::silent(&site).await;
            let bytes = if kind == CONTROL { frame(SETTINGS, &[]) } else { Vec::new() };
            let mut stream = peer.uni(kind, &bytes).await;
            // What it was has to be known before it is reset.
            assert_eq!(peer.ask(&wire::get("/")).await, Reply::well());
            let ended = if is_reset { stream.reset(0x100u32.into()) } else { stream.finish() };
            ended.unwrap();
            assert_eq!(peer.closed().await, CLOSED_CRITICAL_STREAM, "{kind}, reset: {is_reset}");
        }
    }
}

#[tokio::test]
async fn dynamic_table_instructions_end_the_connection() {
    let site = Site::start();
    for (kind, bytes, code) in [
        // A capacity, insertions with and without a name's reference, a duplicate.
        (ENCODER, &[0x20, 0x3f, 0xe1, 0x1f][..], QPACK_ENCODER_STREAM_ERROR),
        (ENCODER, &[0x21], QPACK_ENCODER_STREAM_ERROR),
        (ENCODER, &[0xc0], QPACK_ENCODER_STREAM_ERROR),
        (ENCODER, &[0x80], QPACK_ENCODER_STREAM_ERROR),
        (ENCODER, &[0x41], QPACK_ENCODER_STREAM_ERROR),
        (ENCODER, &[0x00], QPACK_ENCODER_STREAM_ERROR),
        // An acknowledgment after a cancellation in one byte and in several, an increment.
        (DECODER, &[0x40, 0x80], QPACK_DECODER_STREAM_ERROR),
        (DECODER, &[0x7f, 0x81, 0x80, 0x01, 0x84], QPACK_DECODER_STREAM_ERROR),
        (DECODER, &[0x01], QPACK_DECODER_STREAM_ERROR),
    ] {
        let peer = Peer::silent(&site).await;
        let _stream = peer.uni(kind, bytes).await;
        assert_eq!(peer.closed().await, code, "{kind} {bytes:?}");
    }
}

#[tokio::test]
async fn unknown_frames_and_streams_are_ignored_at_any_length() {
    let site = Site::start();
    let (peer, mut control) = Peer::polite(&site).await;
    let _encoder = peer.uni(ENCODER, &[0x20, 0x20]).await;
    let mut decoder = peer.uni(DECODER, &[0x44, 0x7f]).await;
    decoder.write_all(&[0x81, 0x80, 0x01, 0x40]).await.unwrap();
    // A frame of several windows, then others in small pieces; a client's GOAWAY and its limit of pushes are in order.
    control.write_all(&frame(GREASE, &vec![1; 100 << 10])).await.unwrap();
    for byte in [frame(GREASE, b"abc"), frame(wire::GOAWAY, &[0]), frame(MAX_PUSH_ID, &[8])].concat() {
        control.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    // More streams than may be open at a time: each goes on its own, also one that ends before it says what it is.
    for round in 0..100u64 {
        let mut stream = peer.uni(GREASE + 0x1f * round, b"whatever").await;
        let _ = if round % 2 == 0 { stream.finish() } else { stream.reset(1u32.into()) };
        let mut nameless = peer.connection.open_uni().await.unwrap();
        nameless.finish().unwrap();
    }
    assert_eq!(peer.ask(&wire::get("/")).await, Reply::well());
    control.write_all(&frame(wire::DATA, &[])).await.unwrap();
    assert_eq!(peer.closed().await, FRAME_UNEXPECTED);
}
