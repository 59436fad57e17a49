//! Concurrent requests, and failed ones.

use crate::peer::{Peer, Reply, answer};
use crate::site::{BIG, Site};
use crate::wire::{get, head};

const INTERNAL_ERROR: u64 = 0x102;
const REQUEST_CANCELLED: u32 = 0x10c;

/// More than may be open at a time: what is not given back is missed.
const MANY: usize = 300;

#[tokio::test]
async fn a_failed_response_resets_its_stream_alone() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    let (_sender, waiting) = peer.begin(&get("/wait")).await;
    site.gate.reached(1).await;
    for path in ["/failing", "/panic", "/panic-at-once"] {
        assert_eq!(peer.ask(&get(path)).await, Err(INTERNAL_ERROR), "{path}");
    }
    site.gate.open(1);
    assert_eq!(answer(waiting).await.unwrap().body.unwrap(), b"waited");
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
}

#[tokio::test]
async fn a_client_may_cancel_any_request_at_any_time() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    let (_sender, waiting) = peer.begin(&get("/wait")).await;
    site.gate.reached(1).await;
    for round in 0..MANY {
        match round % 4 {
            0 => {
                let (mut sender, mut receiver) = peer.begin(&get("/")[..9]).await;
                sender.reset(REQUEST_CANCELLED.into()).unwrap();
                receiver.stop(REQUEST_CANCELLED.into()).unwrap();
            }
            1 => {
                let (mut sender, receiver) = peer.begin(&get("/")[..9]).await;
                sender.reset(REQUEST_CANCELLED.into()).unwrap();
                assert_eq!(answer(receiver).await, Err(REQUEST_CANCELLED.into()));
            }
            2 => {
                let (mut sender, mut receiver) = peer.begin(&get("/big")).await;
                sender.finish().unwrap();
                assert!(receiver.read_chunk(100, true).await.unwrap().is_some());
                receiver.stop(REQUEST_CANCELLED.into()).unwrap();
            }
            _ => {
                // While the handler is at it.
                let (_sender, mut receiver) = peer.begin(&get("/wait")).await;
                site.gate.reached(1).await;
                receiver.stop(REQUEST_CANCELLED.into()).unwrap();
                site.gate.open(1);
            }
        }
    }
    site.gate.open(1);
    assert_eq!(answer(waiting).await.unwrap().body.unwrap(), b"waited");
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
}

#[tokio::test]
async fn many_requests_are_served_concurrently() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    let mut waiting = Vec::new();
    for _ in 0..80 {
        waiting.push(peer.begin(&get("/wait")).await);
    }
    site.gate.reached(80).await;
    // Twenty more than these may be open.
    for _ in 0..MANY {
        assert_eq!(peer.ask(&get("/")).await, Reply::well());
        assert_eq!(peer.ask(&head("GET", "/nowhere", &[])).await.unwrap().status, 404);
    }
    site.gate.open(80);
    for (_sender, receiver) in waiting {
        assert_eq!(answer(receiver).await.unwrap().body.unwrap(), b"waited");
    }
    assert_eq!(peer.ask(&get("/big")).await.unwrap().body.unwrap().len(), BIG);
}
