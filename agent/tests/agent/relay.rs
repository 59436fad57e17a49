//! A relay for TCP and UDP on one port number, whose UDP can be delayed, or cut without a word, and whose TCP can be closed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{AbortHandle, JoinSet};

/// Forwards to an edge.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    /// Bytes from the edge that may still pass; at nothing or less nothing passes in either direction.
    udp: Arc<AtomicI64>,
    /// How many milliseconds datagrams to the edge take.
    delay: Arc<AtomicU64>,
    /// Bytes from the edge that pass through each connection, until it is closed.
    tcp: Arc<AtomicI64>,
    tcp_task: AbortHandle,
    _tasks: JoinSet<()>,
}

impl Relay {
    pub(crate) async fn start(to: SocketAddr) -> Self {
        for _ in 0..20 {
            let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = tcp.local_addr().expect("it is bound");
            if let Ok(udp) = UdpSocket::bind(address).await {
                let passing = || Arc::new(AtomicI64::new(i64::MAX));
                let (udp_passing, tcp_passing) = (passing(), passing());
                let (delay, mut tasks) = (Arc::default(), JoinSet::new());
                let tcp_task = tasks.spawn(forward_tcp(tcp, to, tcp_passing.clone()));
                tasks.spawn(forward_udp(Arc::new(udp), to, udp_passing.clone(), Arc::clone(&delay)));
                return Self { address, udp: udp_passing, delay, tcp: tcp_passing, tcp_task, _tasks: tasks };
            }
        }
        panic!("no port is free for TCP and UDP");
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// From now on datagrams pass, or vanish.
    pub(crate) fn open_udp(&self, open: bool) {
        self.udp.store(if open { i64::MAX } else { 0 }, Ordering::SeqCst);
    }

    /// Nothing listens on TCP any more.
    pub(crate) fn close_tcp(&self) {
        self.tcp_task.abort();
    }

    /// From now on datagrams to the edge take this long.
    pub(crate) fn delay_udp(&self, delay: Duration) {
        self.delay.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// After this many bytes more from the edge, datagrams vanish.
    pub(crate) fn cut_udp_after(&self, bytes: i64) {
        self.udp.store(bytes, Ordering::SeqCst);
    }

    /// Connections that begin from now on are closed after this many bytes from the edge.
    pub(crate) fn close_tcp_after(&self, bytes: i64) {
        self.tcp.store(bytes, Ordering::SeqCst);
    }
}

async fn forward_tcp(listener: TcpListener, to: SocketAddr, limit: Arc<AtomicI64>) {
    let mut connections = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        let limit = u64::try_from(limit.load(Ordering::SeqCst)).expect("not negative");
        connections.spawn(async move {
            let Ok(mut edge) = TcpStream::connect(to).await else { return };
            let ((mut from_client, mut to_client), (from_edge, mut to_edge)) = (client.split(), edge.split());
            let there = tokio::io::copy(&mut from_client, &mut to_edge);
            let back = async {
                let _ = tokio::io::copy(&mut from_edge.take(limit), &mut to_client).await;
                // What was sent arrives before the end.
                let _ = to_client.shutdown().await;
            };
            let _ = tokio::join!(there, back);
        });
    }
}

async fn forward_udp(socket: Arc<UdpSocket>, to: SocketAddr, passing: Arc<AtomicI64>, delay: Arc<AtomicU64>) {
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut answers = JoinSet::new();
    let mut buffer = vec![0; 64 << 10];
    while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
        if passing.load(Ordering::SeqCst) <= 0 {
            continue;
        }
        let edge = match clients.get(&client) {
            Some(edge) => edge.clone(),
            None => {
                let edge = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a port"));
                edge.connect(to).await.expect("loopback");
                clients.insert(client, edge.clone());
                let (back, edge_back, passing) = (socket.clone(), edge.clone(), passing.clone());
                answers.spawn(async move {
                    let mut buffer = vec![0; 64 << 10];
                    loop {
                        let Ok(length) = edge_back.recv(&mut buffer).await else { continue };
                        if passing.fetch_sub(length as i64, Ordering::SeqCst) > 0 {
                            let _ = back.send_to(&buffer[..length], client).await;
                        }
                    }
                });
                edge
            }
        };
        let delay = delay.load(Ordering::SeqCst);
        if delay == 0 {
            let _ = edge.send(&buffer[..length]).await;
            continue;
        }
        let datagram = buffer[..length].to_vec();
        answers.spawn(async move {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            let _ = edge.send(&datagram).await;
        });
    }
}
