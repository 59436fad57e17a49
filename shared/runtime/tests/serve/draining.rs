//! The end of a connection, in which nothing that was taken is lost.

use std::sync::Arc;
use std::time::Duration;

use quinn::{ConnectionError, TransportConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use weir_runtime::serve::QuicOptions;

use crate::http2::{self, ACK, DATA, GOAWAY, Http2Peer, PING, request};
use crate::peer::{Peer, Reply, answer};
use crate::relay::Relay;
use crate::site::{BIG, PATIENCE, Site};
use crate::wire::{SETTINGS, get};

const NO_ERROR: u64 = 0x100;
const REQUEST_REJECTED: u64 = 0x10b;

#[tokio::test]
async fn an_http_3_client_gets_two_goaways_and_all_accepted_responses() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    let mut control = peer.control().await;
    assert_eq!(control.frame().await.0, SETTINGS);
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
    let (_sender, waiting) = peer.begin(&get("/wait")).await;
    site.gate.reached(1).await;

    let finished = site.finish();
    assert_eq!(control.goaway().await, (1 << 62) - 4);
    // Requests until the second word, of which each is before or after it.
    let mut asked = Vec::new();
    let first_refused = {
        let mut second = std::pin::pin!(control.goaway());
        loop {
            let (mut sender, receiver) = peer.begin(&get("/")).await;
            let _ = sender.finish();
            let stream = u64::from(quinn::VarInt::from(receiver.id()));
            asked.push((stream, answer(receiver).await));
            if let Ok(stream) = tokio::time::timeout(Duration::from_millis(1), second.as_mut()).await {
                break stream;
            }
        }
    };
    for (stream, answer) in asked {
        let promised = if stream < first_refused { Reply::well() } else { Err(REQUEST_REJECTED) };
        assert_eq!(answer, promised, "stream {stream} of {first_refused}");
    }
    assert_eq!(peer.ask(&get("/")).await, Err(REQUEST_REJECTED));
    site.gate.open(1);
    assert_eq!(answer(waiting).await.unwrap().body.unwrap(), b"waited");
    assert_eq!(peer.closed().await, NO_ERROR);
    assert!(finished.await);
}

#[tokio::test]
async fn an_http_2_client_gets_two_goaways() {
    let site = Site::start();
    let mut peer = Http2Peer::connect(&site, &[]).await;
    peer.send(&request("GET", "/wait", 1)).await;
    site.gate.reached(1).await;
    let finished = site.finish();
    let (mut goaways, mut answered) = (Vec::new(), Vec::new());
    while let Some(frame) = peer.frame().await {
        match frame.kind {
            GOAWAY => {
                goaways.push(u32::from_be_bytes(frame.payload[..4].try_into().unwrap()));
                match goaways[..] {
                    // A request that is on its way by now is still answered.
                    [_] => peer.send(&request("GET", "/", 3)).await,
                    _ => site.gate.open(1),
                }
            }
            // How the server learns that the first word has arrived.
            PING => peer.send(&http2::frame(PING, ACK, 0, &frame.payload)).await,
            DATA => answered.extend(frame.payload),
            _ => {}
        }
    }
    assert_eq!(goaways, [u32::MAX >> 1, 3]);
    assert_eq!(String::from_utf8(answered).unwrap(), "wellwaited");
    drop(peer);
    assert!(finished.await);
}

#[tokio::test]
async fn a_slow_reader_gets_its_whole_response_in_a_drain() {
    let site = Site::start();
    let mut transport = TransportConfig::default();
    transport.stream_receive_window((256u32 << 10).into());
    let peer = Peer::with(&site, site.address, transport).await;
    let (mut sender, mut receiver) = peer.begin(&get("/big")).await;
    sender.finish().unwrap();
    let head = receiver.read_chunk(100, true).await.unwrap().unwrap().bytes;
    let finished = site.finish();
    let mut control = peer.control().await;
    assert_eq!(control.frame().await.0, SETTINGS);
    control.goaway().await;
    control.goaway().await;
    let rest = receiver.read_to_end(BIG + 4096).await.unwrap();
    assert!(head.len() + rest.len() > BIG);
    assert_eq!(peer.closed().await, NO_ERROR);
    assert!(finished.await);
}

#[tokio::test]
async fn a_client_that_ignores_the_control_stream_still_gets_its_response() {
    let site = Site::start();
    // Less than the settings take, so that they stay unsaid; an answer's reader asks for more and more.
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(4u32.into());
    let peer = Peer::with(&site, site.address, transport).await;
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
    let (_sender, waiting) = peer.begin(&get("/wait")).await;
    site.gate.reached(1).await;
    let finished = site.finish();
    site.drain.begun().await;
    site.gate.open(1);
    assert_eq!(answer(waiting).await.unwrap().body.unwrap(), b"waited");
    assert!(finished.await);
}

#[tokio::test]
async fn a_client_that_allows_no_control_stream_does_not_delay_a_drain() {
    let site = Site::start();
    let mut transport = TransportConfig::default();
    transport.max_concurrent_uni_streams(0u32.into());
    let peer = Peer::with(&site, site.address, transport).await;
    let (_sender, _receiver) = peer.begin(&get("/")).await;
    let begun = site.finish();
    assert!(begun.await);
}

#[tokio::test]
async fn a_lost_small_response_is_sent_again_in_a_drain() {
    let site = Site::start();
    let relay = Relay::to(site.address).await;
    let peer = Peer::with(&site, relay.address, TransportConfig::default()).await;
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
    relay.lose(true);
    let (mut sender, receiver) = peer.begin(&get("/wait")).await;
    sender.finish().unwrap();
    site.gate.reached(1).await;
    site.gate.open(1);
    // The answer is sent in the turn in which the handler is done, and lost.
    site.gate.passed(1).await;
    let finished = site.finish();
    // Longer than a connection is kept after all has arrived: this is what must not end it.
    tokio::time::sleep(Duration::from_millis(600)).await;
    relay.lose(false);
    assert_eq!(answer(receiver).await.unwrap().body.unwrap(), b"waited");
    assert!(finished.await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_begins_under_constant_load() {
    let site = Site::start();
    let (peer, _control) = Peer::polite(&site).await;
    let answered = Arc::new(Semaphore::new(0));
    let askers = (0..16).map(|_| {
        let (connection, answered) = (peer.connection.clone(), answered.clone());
        tokio::spawn(async move {
            while let Ok((mut sender, mut receiver)) = connection.open_bi().await {
                // From some time on they are refused.
                let _ = sender.write_all(&get("/")).await;
                let _ = sender.finish();
                if receiver.read_to_end(4096).await.is_ok() {
                    answered.add_permits(1);
                }
            }
        })
    });
    let askers: Vec<_> = askers.collect();
    tokio::time::timeout(PATIENCE, answered.acquire_many(500)).await.unwrap().unwrap().forget();
    assert!(site.finish().await);
    assert_eq!(peer.closed().await, NO_ERROR);
    for asker in askers {
        asker.await.unwrap();
    }
}

/// Everything that the server sends to a client that sends one request and waits for the end.
async fn asks_once(site: &Site, stream: TcpStream, over_http2: bool) -> String {
    if !over_http2 {
        let mut stream = site.tls_over(stream, &[b"http/1.1"]).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        return answer;
    }
    let mut peer = Http2Peer::over(site.tls_over(stream, &[b"h2"]).await.unwrap(), &[]).await;
    peer.send(&request("GET", "/", 1)).await;
    let mut answer = String::new();
    while let Some(frame) = peer.frame().await {
        match frame.kind {
            GOAWAY => answer.push_str("goaway "),
            PING => peer.send(&http2::frame(PING, ACK, 0, &frame.payload)).await,
            DATA => answer.push_str(std::str::from_utf8(&frame.payload).unwrap()),
            _ => {}
        }
    }
    answer
}

#[tokio::test]
async fn clients_in_the_backlog_get_responses_in_a_drain() {
    let site = Site::start();
    // The only thread of this runtime connects, so the server has accepted none of them.
    let waiting: Vec<_> = (0..100).map(|_| std::net::TcpStream::connect(site.tcp_address).unwrap()).collect();
    let finished = site.finish();
    for (number, stream) in waiting.into_iter().enumerate() {
        stream.set_nonblocking(true).unwrap();
        let over_http2 = number % 2 == 1;
        let answer = asks_once(&site, TcpStream::from_std(stream).unwrap(), over_http2).await;
        let says = if over_http2 { "goaway" } else { "connection: close" };
        assert!(answer.contains(says) && answer.contains("well"), "client {number}: {answer:?}");
    }
    assert!(finished.await, "nothing was cut");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_connects_during_a_drain_is_served_or_refused() {
    let site = Arc::new(Site::start());
    let answered = Arc::new(Semaphore::new(0));
    let clients = (0..8).map(|_| {
        let (site, answered) = (site.clone(), answered.clone());
        tokio::spawn(async move {
            while let Ok(stream) = TcpStream::connect(site.tcp_address).await {
                let mut peer = Http2Peer::over(site.tls_over(stream, &[b"h2"]).await.unwrap(), &[]).await;
                peer.send(&request("GET", "/", 1)).await;
                assert_eq!(peer.next(DATA).await.unwrap().payload, b"well");
                answered.add_permits(1);
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    tokio::time::timeout(PATIENCE, answered.acquire_many(100)).await.unwrap().unwrap().forget();
    assert!(site.finish().await, "nothing was cut");
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn a_quic_handshake_in_progress_completes_in_a_drain() {
    let site = Site::start();
    let relay = Relay::to(site.address).await;
    relay.lose(true);
    let (endpoint, connecting) = Peer::connecting(site.pki.path(), relay.address, TransportConfig::default());
    site.until("the handshake is under way", || site.metric("weir_http_handshakes", "quic") == 1).await;
    let finished = site.finish();
    site.drain.begun().await;
    relay.lose(false);
    let peer = Peer::connected(endpoint, connecting).await;
    assert_eq!(peer.ask(&get("/")).await, Reply::well());
    assert_eq!(peer.closed().await, NO_ERROR);
    assert!(finished.await, "nothing was cut");
}

#[test]
fn a_client_of_a_killed_server_learns_of_it_from_the_next_one() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let options = QuicOptions { reset_key: Some([7; 32]), ..QuicOptions::default() };
    let (client, killed, next) = (runtime(), runtime(), runtime());
    let site = killed.block_on(async { Site::with(&options) });
    let (peer, _control) = client.block_on(Peer::polite(&site));
    // Nobody sends anything any more.
    killed.shutdown_background();
    let _site = next.block_on(async {
        while std::net::UdpSocket::bind(site.address).is_err() {
            tokio::task::yield_now().await;
        }
        Site::at(site.address, &options)
    });
    client.block_on(async {
        // It may know already.
        if let Ok(mut stream) = peer.connection.open_uni().await {
            let _ = stream.write_all(b"x").await;
        }
        let end = tokio::time::timeout(PATIENCE, peer.connection.closed()).await.unwrap();
        assert_eq!(end, ConnectionError::Reset);
    });
}
