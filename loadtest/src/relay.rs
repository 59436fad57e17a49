//! A relay in front of a TCP listener that damages what passes through, as a bad network card or cable would, or lets
//! nothing through at all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Bytes of an answer that pass undamaged before a bit is flipped: the handshake gets through, a body does not.
const FLIP_AFTER: u64 = 64 << 10;

/// A running relay. It ends with the runtime.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    damage: AtomicBool,
    flipped: AtomicU64,
    severed: watch::Sender<bool>,
}

impl Relay {
    /// Relays connections on a free port of loopback to `target`.
    ///
    /// # Errors
    /// No port can be bound.
    pub async fn start(target: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = shared.clone();
                tokio::spawn(async move {
                    let mut severed = state.severed.subscribe();
                    if *severed.borrow_and_update() {
                        return;
                    }
                    if let Ok(server) = TcpStream::connect(target).await {
                        let (client_reader, client_writer) = client.into_split();
                        let (server_reader, server_writer) = server.into_split();
                        tokio::select! {
                            () = pass(client_reader, server_writer, None) => {}
                            () = pass(server_reader, client_writer, Some(&state)) => {}
                            _ = severed.wait_for(|severed| *severed) => {}
                        }
                    }
                });
            }
        });
        Ok(Self { address, state })
    }

    /// Where to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on a bit is flipped in each connection's answers, or no more.
    pub fn damage(&self, on: bool) {
        self.state.damage.store(on, Ordering::Relaxed);
    }

    /// From now on all connections break and none gets through, or they do again.
    pub fn sever(&self, on: bool) {
        self.state.severed.send_replace(on);
    }

    /// Bits flipped so far.
    pub fn flipped(&self) -> u64 {
        self.state.flipped.load(Ordering::Relaxed)
    }
}

async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, damage: Option<&State>) {
    let mut buffer = vec![0; 16 << 10];
    let mut passed = 0;
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        passed += read as u64;
        if let Some(state) = damage
            && state.damage.load(Ordering::Relaxed)
            && passed > FLIP_AFTER
        {
            buffer[read / 2] ^= 1;
            state.flipped.fetch_add(1, Ordering::Relaxed);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
}
