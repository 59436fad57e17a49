//! A path between two ends that can be made to lose what the server sends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::UdpSocket;

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    loses: Arc<AtomicBool>,
}

impl Relay {
    /// Carries packets between one client and a server.
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let near = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let far = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        far.connect(server).await.unwrap();
        let address = near.local_addr().unwrap();
        let loses = Arc::new(AtomicBool::new(false));
        let losing = loses.clone();
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
                            let _ = near.send_to(&back[..length], client).await;
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
