//! A TCP relay that can flip bits, drop connections, and add delay and a bandwidth limit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Bytes of responses before a bit is flipped: the handshake passes, a body does not.
const FLIP_AFTER: u64 = 64 << 10;

/// The size of a read in bytes.
const PART: usize = 16 << 10;

/// The most parts in transit per connection; the server waits beyond them.
const MAX_UNDER_WAY: usize = 4096;

/// The tolerance of timers: a line that is behind by this much catches up.
const TIMER_SLACK: Duration = Duration::from_millis(10);

/// The simulated line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Line {
    /// The delay of responses, which is the round-trip time.
    pub delay: Duration,
    /// The bandwidth of each connection's responses; `None`: unlimited.
    pub bytes_per_second: Option<u64>,
}

/// A running relay. It stops with the runtime.
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
    /// Relays connections on a free loopback port to `target`.
    ///
    /// # Errors
    /// No port can be bound.
    pub async fn start(target: SocketAddr) -> std::io::Result<Self> {
        Self::over(Line::default(), target).await
    }

    /// Relays connections over a line with delay and bandwidth.
    ///
    /// # Errors
    /// No port can be bound.
    pub async fn over(line: Line, target: SocketAddr) -> std::io::Result<Self> {
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
                        let _ = (client.set_nodelay(true), server.set_nodelay(true));
                        let (client_reader, client_writer) = client.into_split();
                        let (server_reader, server_writer) = server.into_split();
                        tokio::select! {
                            () = pass_requests(client_reader, server_writer) => {}
                            () = pass_answers(server_reader, client_writer, line, &state) => {}
                            _ = severed.wait_for(|severed| *severed) => {}
                        }
                    }
                });
            }
        });
        Ok(Self { address, state })
    }

    /// The address of the relay.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts or stops flipping a bit in the responses of each connection.
    pub fn damage(&self, on: bool) {
        self.state.damage.store(on, Ordering::Relaxed);
    }

    /// Breaks all connections and refuses new ones, or stops doing so.
    pub fn sever(&self, on: bool) {
        self.state.severed.send_replace(on);
    }

    /// The number of flipped bits.
    pub fn flipped(&self) -> u64 {
        self.state.flipped.load(Ordering::Relaxed)
    }
}

async fn pass_requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

/// Relays responses with the delay and the bandwidth of the line.
async fn pass_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, line: Line, state: &State) {
    let (sender, mut under_way) = mpsc::channel::<(Instant, Vec<u8>)>(MAX_UNDER_WAY);
    let take = async move {
        let (mut passed, mut is_free) = (0, Instant::now());
        let mut part = vec![0; PART];
        while let Ok(read @ 1..) = from.read(&mut part).await {
            passed += read as u64;
            if state.damage.load(Ordering::Relaxed) && passed > FLIP_AFTER {
                part[read / 2] ^= 1;
                state.flipped.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(width) = line.bytes_per_second {
                is_free =
                    is_free.max(Instant::now() - TIMER_SLACK) + Duration::from_secs_f64(read as f64 / width as f64);
                sleep_until(is_free).await;
            }
            if sender.send((Instant::now() + line.delay, part[..read].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let give = async move {
        while let Some((arrives, part)) = under_way.recv().await {
            if !line.delay.is_zero() {
                sleep_until(arrives).await;
            }
            if to.write_all(&part).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(take, give);
}
