//! The listeners themselves, with handlers that misbehave.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use prometheus::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir_runtime::certificates;
use weir_runtime::serve::{self, Body, Handler, HttpMetrics, Peer, QuicOptions, RequestBody};
use weir_runtime::shutdown::Drain;
use weir_runtime::tls::{self, ClientAuth};

use crate::client::Client;
use crate::site::PATIENCE;

#[derive(Clone)]
struct Misbehaving;

impl Handler for Misbehaving {
    async fn handle(&self, request: Request<RequestBody>, _: Arc<Peer>) -> Response<Body> {
        let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"half")))]);
        match request.uri().path() {
            "/panic" => panic!("as the test wants it"),
            "/panic-in-the-body" => {
                let body = first.chain(stream::once(async { panic!("as the test wants it") }));
                Response::new(Body::stream(StreamBody::new(Box::pin(body))))
            }
            "/endless" => Response::new(Body::stream(StreamBody::new(Box::pin(first.chain(stream::pending()))))),
            _ => Response::new(Body::from(b"well".to_vec())),
        }
    }
}

struct Listeners {
    pki: tempfile::TempDir,
    address: SocketAddr,
    drain: Drain,
}

impl Listeners {
    async fn start() -> Self {
        let pki = tempfile::tempdir().unwrap();
        certificates::write(pki.path(), &[]).unwrap();
        let file = |name: &str| pki.path().join(name);
        let tls = tls::server_config(&file("edge.pem"), &file("edge.key"), ClientAuth::None).unwrap();
        let metrics = HttpMetrics::register(&Registry::new()).unwrap().listener("test");
        let drain = Drain::new();
        loop {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let options = QuicOptions::default();
            if serve::quic(address, tls.clone(), &options, Misbehaving, metrics.clone(), &drain).is_ok() {
                serve::tcp(listener, Some(tls), Misbehaving, metrics, &drain);
                return Self { pki, address, drain };
            }
        }
    }

    fn pki(&self) -> &Path {
        self.pki.path()
    }

    async fn client(&self, version: &str) -> Client {
        Client::connect(version, self.address, self.pki()).await
    }
}

#[tokio::test]
async fn a_panic_ends_its_own_request_alone_and_never_cleanly() {
    let listeners = Listeners::start().await;
    for version in ["h1", "h2", "h3"] {
        let mut neighbour = listeners.client(version).await;
        let mut endless = neighbour.begin("GET", "/endless", &[]).await;
        assert_eq!(endless.next().await.unwrap().unwrap(), "half");
        for path in ["/panic", "/panic-in-the-body"] {
            let mut client = listeners.client(version).await;
            let reply = tokio::time::timeout(PATIENCE, client.get(path, &[])).await.unwrap();
            assert!(reply.body.is_err(), "{version} {path}: {reply:?}");
            let mut client = if version == "h1" { listeners.client(version).await } else { client };
            assert_eq!(client.get("/", &[]).await.bytes(), "well", "{version} after {path}");
        }
        drop(endless);
    }
}

#[tokio::test]
async fn a_drain_does_not_wait_for_idle_clients() {
    let listeners = Listeners::start().await;
    // A handshake that never goes on, one connection that says nothing, and clients that are idle.
    let _silent = TcpStream::connect(listeners.address).await.unwrap();
    let udp = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    udp.send_to(&[0xc0; 1200], listeners.address).await.unwrap();
    let mut idle = Vec::new();
    for version in ["h1", "h2", "h3"] {
        let mut client = listeners.client(version).await;
        client.get("/", &[]).await;
        idle.push(client);
    }
    assert!(listeners.drain.finish(Duration::from_secs(5)).await, "nothing had to be cut");
}

#[tokio::test]
async fn http_1_1_without_a_host_is_malformed() {
    let listeners = Listeners::start().await;
    let tls = tls::client_config(&listeners.pki().join("ca.pem"), None).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
    for (head, status) in [
        ("GET / HTTP/1.1\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: a\r\n", "200"),
        ("GET https://a/ HTTP/1.1\r\nhost: a\r\n", "200"),
        ("GET /?q=/panic HTTP/1.1\r\nhost: a\r\n", "200"),
        ("GET / HTTP/1.0\r\n", "200"),
    ] {
        let tcp = TcpStream::connect(listeners.address).await.unwrap();
        let mut stream = connector.connect("127.0.0.1".try_into().unwrap(), tcp).await.unwrap();
        stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert_eq!(String::from_utf8_lossy(&answer).split(' ').nth(1), Some(status), "{head}");
    }
}
