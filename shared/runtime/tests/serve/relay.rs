//! A path between two ends that can be made to lose what the server sends, or to take its time with it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    loses: Arc<AtomicBool>,
}

impl Relay {
    /// Carries packets between one client and a server.
    pub(crate) async fn to(server: SocketAddr) -> Self {
        Self::with_delay(server, Duration::ZERO).await
    }

    /// Carries packets between one client and a server, those of the server after a while.
    pub(crate) async fn with_delay(server: SocketAddr, delay: Duration) -> Self {
        let near = Arc::new(socket());
        let far = Arc::new(socket());
        far.connect(server).await.unwrap();
        let address = near.local_addr().unwrap();
        let loses = Arc::new(AtomicBool::new(false));
        let (on_its_way, mut arriving) = mpsc::unbounded_channel::<(Instant, SocketAddr, Vec<u8>)>();
        let (losing, client_side) = (loses.clone(), near.clone());
        tokio::spawn(async move {
            while let Some((at, client, packet)) = arriving.recv().await {
                tokio::time::sleep_until(at).await;
                let _ = client_side.send_to(&packet, client).await;
            }
        });
        tokio::spawn(async move {
            let (mut there, mut back) = ([0; 2048], [0; 2048]);
            let mut client = None;
            loop {
                tokio::select! {
                    Ok((length, from)) = near.recv_from(&mut there) => {
                        client = Some(from);
                        let _ = far.send(&there[..length]).await;
                    }
                    Ok(length) = far.recv(&mut back) => {
                        if let (Some(client), false) = (client, losing.load(Ordering::Relaxed)) {
                            let _ = on_its_way.send((Instant::now() + delay, client, back[..length].to_vec()));
                        }
                    }
                }
            }
        });
        Self { address, loses }
    }

    /// Whether packets of the server are lost from now on.
    pub(crate) fn lose(&self, loses: bool) {
        self.loses.store(loses, Ordering::Relaxed);
    }
}

/// One that takes much in at a time.
fn socket() -> UdpSocket {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20);
    socket.set_nonblocking(true).unwrap();
    UdpSocket::from_std(socket).unwrap()
}
