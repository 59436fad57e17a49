//! HTTP/2: requests beside each other, and those that end otherwise than well.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

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
