//! A TCP listener that loses no client when it closes.
//!
//! The system completes handshakes by itself: a client is connected before it is accepted here, and is reset when the
//! listener closes before that. So in a drain the system first takes no new clients, then those that it has let in are
//! accepted and served, and only then is the listener closed. A client that comes in between tries again after a second,
//! by itself, and is refused then (or let in by the process that has taken over the address).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::shutdown::Drain;

/// How long nobody may have come before a draining listener is closed: the last packet of a handshake that is under way
/// arrives in that time.
const QUIET: Duration = Duration::from_millis(200);

/// How long a draining listener is open at the most, should the system go on taking clients.
const LONGEST: Duration = Duration::from_secs(2);

/// A listener, and how far it has closed.
pub(super) struct Listener {
    listener: TcpListener,
    drain: Drain,
    /// From the beginning of the drain on: when it is closed at the latest.
    closes: Option<Instant>,
}

impl Listener {
    pub(super) fn new(listener: TcpListener, drain: Drain) -> Self {
        Self { listener, drain, closes: None }
    }

    /// The next client. `None`: the drain has begun, and all that were let in have been accepted.
    pub(super) async fn next(&mut self) -> Option<io::Result<(TcpStream, SocketAddr)>> {
        if self.closes.is_none() {
            tokio::select! {
                () = self.drain.begun() => {}
                accepted = self.listener.accept() => return Some(accepted),
            }
            if let Err(error) = take_no_new_clients(&self.listener) {
                tracing::debug!(%error, "clients are taken until the listener closes");
            }
        }
        let closes = *self.closes.get_or_insert_with(|| Instant::now() + LONGEST);
        tokio::time::timeout_at(closes.min(Instant::now() + QUIET), self.listener.accept()).await.ok()
    }
}

/// Has the system drop the packets that begin a handshake, and let those under way end.
fn take_no_new_clients(listener: &TcpListener) -> io::Result<()> {
    const FLAGS_OFFSET: u32 = 13;
    const SYN: u32 = 0x02;
    const SYN_AND_ACK: u32 = 0x12;
    // Classic BPF over the TCP header (linux/filter.h): load the byte of the flags, mask it, compare it, drop or pass.
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
