//! What a listener takes at the most, and what it counts.

use std::net::IpAddr;

use futures_util::FutureExt;
use quinn::TransportConfig;
use weir_runtime::serve::{MAX_URL_BYTES, QuicOptions, TcpOptions};

use crate::http2::{Http2Peer, request};
use crate::peer::{Peer, Reply};
use crate::relay::Relay;
use crate::site::Site;
use crate::wire::get;

#[tokio::test]
async fn a_url_above_the_limit_is_414() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let site = Site::start();
    let longest = format!("/?{}", "q".repeat(MAX_URL_BYTES - 2));
    for (path, status) in [(longest.clone(), 200), (longest + "q", 414)] {
        let mut http1 = site.tls(&[b"http/1.1"]).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        http1.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = http1.read_to_end(&mut answer).await;
        assert_eq!(String::from_utf8_lossy(&answer).split(' ').nth(1), Some(status.to_string().as_str()));

        let mut peer = Http2Peer::connect(&site, &[]).await;
        peer.send(&request("GET", &path, 1)).await;
        assert_eq!(peer.status().await, status);

        let (peer, _control) = Peer::polite(&site).await;
        assert_eq!(peer.ask(&get(&path)).await.unwrap().status, status);
    }
}

#[tokio::test]
async fn a_client_under_load_must_validate_its_address() {
    let options = QuicOptions { max_unvalidated_handshakes: 1, max_handshakes: 8, ..QuicOptions::default() };
    let site = Site::with_options(&options, &TcpOptions::default());
    let limited = |bound: &str| site.metric("weir_http_connections_limited_total", bound);
    let (peer, _control) = Peer::polite(&site).await;
    assert_eq!((peer.ask(&get("/")).await, limited("unvalidated_handshakes")), (Reply::well(), 0));

    // A handshake that stays half-done: nothing that the server sends arrives.
    let relay = Relay::to(site.address).await;
    relay.lose(true);
    let stuck = Peer::connecting(site.pki.path(), relay.address, TransportConfig::default());
    site.until("it is under way", || site.metric("weir_http_handshakes", "quic") == 1).await;
    let (peer, _control) = Peer::polite(&site).await;
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
    assert_eq!((limited("unvalidated_handshakes"), limited("handshakes")), (1, 0));
    drop(stuck);
}

#[tokio::test]
async fn connections_above_the_limit_wait_or_are_refused() {
    let quic = QuicOptions { max_connections: 1, ..QuicOptions::default() };
    let site = Site::with_options(&quic, &TcpOptions { max_connections: 1, ..TcpOptions::default() });
    let (peer, _control) = Peer::polite(&site).await;
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
    let (_endpoint, second) = Peer::connecting(site.pki.path(), site.address, TransportConfig::default());
    let refused = second.await.unwrap_err();
    assert!(matches!(refused, quinn::ConnectionError::ConnectionClosed(_)), "{refused}");
    assert_eq!(site.metric("weir_http_connections_limited_total", "quic"), 1);

    let mut first = Http2Peer::connect(&site, &[]).await;
    assert_eq!(site.metric("weir_http_connections_limited_total", "tcp"), 0, "no client waits");
    // It has connected, as far as the system is concerned, and is accepted when the first has gone.
    let mut second = Box::pin(Http2Peer::connect(&site, &[]));
    assert!(second.as_mut().now_or_never().is_none());
    site.until("it waits", || site.metric("weir_http_connections_limited_total", "tcp") == 1).await;
    first.send(&request("GET", "/", 1)).await;
    assert_eq!(first.status().await, 200);
    assert!(second.as_mut().now_or_never().is_none());
    drop(first);
    let mut second = second.await;
    second.send(&request("GET", "/", 1)).await;
    assert_eq!(second.status().await, 200);
}

#[tokio::test]
async fn one_source_leaves_room_for_others() {
    let quic = QuicOptions { max_per_source: 1, ..QuicOptions::default() };
    let site = Site::with_options(&quic, &TcpOptions { max_per_source: 1, ..TcpOptions::default() });
    // A client that sends no request, over each transport.
    let silent = site.tls(&[b"h2"]).await;
    let (_peer, _control) = Peer::polite(&site).await;

    assert!(site.try_tls(site.pki.path(), &[b"h2"]).await.is_err());
    let (_endpoint, second) = Peer::connecting(site.pki.path(), site.address, TransportConfig::default());
    let refused = second.await.unwrap_err();
    assert!(matches!(refused, quinn::ConnectionError::ConnectionClosed(_)), "{refused}");
    assert_eq!((site.limited("tcp", "source"), site.limited("quic", "source")), (1, 1));

    let another = IpAddr::from([127, 0, 0, 2]);
    let stream = site.tls_over(site.tcp_from(another).await, &[b"h2"]).await.unwrap();
    let mut http2 = Http2Peer::over(stream, &[]).await;
    http2.send(&request("GET", "/", 1)).await;
    assert_eq!(http2.status().await, 200);
    let (endpoint, connecting) =
        Peer::connecting_from(another, site.pki.path(), site.address, TransportConfig::default());
    assert_eq!(Peer::connected(endpoint, connecting).await.ask(&get("/")).await, Reply::well());

    // A connection that ends makes room.
    drop(silent);
    site.until("it has gone", || site.metric("weir_http_connections", "h2") == 1).await;
    let mut http2 = Http2Peer::connect(&site, &[]).await;
    http2.send(&request("GET", "/", 1)).await;
    assert_eq!(http2.status().await, 200);
}

#[tokio::test]
async fn connections_and_handshakes_are_counted_by_protocol() {
    let site = Site::start();
    let open = |protocol: &str| site.metric("weir_http_connections", protocol);
    {
        let (peer, _control) = Peer::polite(&site).await;
        assert_eq!(peer.ask(&get("/")).await, Reply::well());
        let mut http2 = Http2Peer::connect(&site, &[]).await;
        http2.send(&request("GET", "/", 1)).await;
        assert_eq!(http2.status().await, 200);
        let _http1 = site.tls(&[b"http/1.1"]).await;
        site.until("all are open", || (open("h1"), open("h2"), open("h3")) == (1, 1, 1)).await;
        assert_eq!(site.metric("weir_http_handshakes", "tcp") + site.metric("weir_http_handshakes", "quic"), 0);
        for transport in ["tcp", "quic"] {
            assert!(site.metric("weir_http_connections_limit", transport) > 1000);
            assert!(site.metric("weir_http_handshakes_limit", transport) > 1000);
        }
        assert_eq!(site.metric("weir_http_handshake_duration_seconds", "tcp"), 2);
        assert_eq!(site.metric("weir_http_handshake_duration_seconds", "quic"), 1);
        peer.connection.close(0u32.into(), b"");
    }
    site.until("all have gone", || open("h1") + open("h2") + open("h3") == 0).await;
    site.until("its packets are counted", || site.metric("weir_quic_packets_sent_total", "test") > 3).await;
    assert_eq!(site.metric("weir_quic_path_rtt_seconds", "test"), 1);
    assert!(site.metric("weir_quic_datagrams_total", "received") > 3);
    assert_eq!(site.metric("weir_quic_packets_lost_total", "test"), 0);

    let failures = |reason: &str| site.metric("weir_http_handshake_failures_total", reason);
    drop(site.tcp().await);
    site.until("one went away", || failures("closed") == 1).await;
    let another = tempfile::tempdir().unwrap();
    weir_runtime::certificates::write(another.path(), &[]).unwrap();
    assert!(site.try_tls(another.path(), &[b"h2"]).await.is_err());
    site.until("one did not trust the certificate", || failures("rejected") == 1).await;
    let (_endpoint, connecting) = Peer::connecting(another.path(), site.address, TransportConfig::default());
    assert!(connecting.await.is_err());
    site.until("one more did not", || failures("rejected") == 2).await;
    use tokio::io::AsyncWriteExt;
    site.tcp().await.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    site.until("one spoke no TLS", || failures("refused") == 1).await;
}
