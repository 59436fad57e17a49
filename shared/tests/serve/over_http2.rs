//! HTTP/2: requests beside each other, and those that end otherwise than well.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, Http2Peer, RST_STREAM, frame, request, section};
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
async fn what_fails_over_http2_is_reset_alone_too() {
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
async fn a_drain_lets_what_waits_over_http2_finish() {
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
async fn an_answer_waits_for_the_rest_of_its_request_and_its_stream_is_not_reset() {
    let site = Site::start();
    for path in ["/", "/nothing-is-here"] {
        let mut peer = Http2Peer::connect(&site, &[]).await;
        peer.send(&frame(HEADERS, END_HEADERS, 1, &section("POST", path))).await;
        peer.send(&frame(DATA, 0, 1, &[b'x'; 1000])).await;
        // What was asked after it is answered before it.
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
