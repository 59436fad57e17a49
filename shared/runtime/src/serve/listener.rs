//! A TCP listener that resets no client when it closes.
//!
//! The kernel completes handshakes by itself: a client is connected before it is accepted here, and is reset if the
//! listener closes first. So in a drain the kernel first drops new SYNs, then the backlog is accepted and served, and only
//! then the listener is closed. A client whose SYN was dropped sends it again after a second; then its connection is
//! refused, or accepted by the process that has taken over the address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::shutdown::Drain;

/// A draining listener is closed after this long without a client: the last packet of a handshake in progress arrives in
/// that time.
const IDLE_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a draining listener stays open at most, in case the kernel goes on accepting clients.
const MAX_CLOSE: Duration = Duration::from_secs(2);

/// A listener that drains its backlog.
pub(super) struct Listener {
    listener: TcpListener,
    drain: Drain,
    /// When it is closed at the latest; set when the drain begins.
    closes: Option<Instant>,
}

impl Listener {
    pub(super) fn new(listener: TcpListener, drain: Drain) -> Self {
        Self { listener, drain, closes: None }
    }

    /// The next client. `None`: the drain has begun, and the backlog is empty.
    pub(super) async fn next(&mut self) -> Option<io::Result<(TcpStream, SocketAddr)>> {
        if self.closes.is_none() {
            tokio::select! {
                () = self.drain.begun() => {}
                accepted = self.listener.accept() => return Some(accepted),
            }
            if let Err(error) = drop_new_connections(&self.listener) {
                tracing::debug!(%error, "new connections cannot be filtered; they are accepted until the listener closes");
            }
        }
        let closes = *self.closes.get_or_insert_with(|| Instant::now() + MAX_CLOSE);
        tokio::time::timeout_at(closes.min(Instant::now() + IDLE_TIMEOUT), self.listener.accept()).await.ok()
    }
}

/// Makes the kernel drop SYNs, and finish the handshakes in progress.
fn drop_new_connections(listener: &TcpListener) -> io::Result<()> {
    const FLAGS_OFFSET: u32 = 13;
    const SYN: u32 = 0x02;
    const SYN_AND_ACK: u32 = 0x12;
    // Classic BPF over the TCP header (linux/filter.h): load the flags, mask them, compare them, drop or pass.
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    SockRef::from(listener).attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS_OFFSET),
        SockFilter::new(AND, 0, 0, SYN_AND_ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ])
}
