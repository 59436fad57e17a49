//! Detects idle clients that are gone without closing the connection.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

/// How long a connection may be idle before it gets a ping.
const INTERVAL: Duration = Duration::from_secs(60);

/// How long the client may take for its pong.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Pings a client without requests in flight. A client with some is covered by the minimum rate of its responses.
pub(super) struct KeepAlive {
    ping_pong: PingPong,
    sleep: Pin<Box<Sleep>>,
    awaits_pong: bool,
}

impl KeepAlive {
    pub(super) fn new(ping_pong: PingPong) -> Self {
        Self { ping_pong, sleep: Box::pin(tokio::time::sleep(INTERVAL)), awaits_pong: false }
    }

    /// Whether the client sent no pong in time.
    pub(super) fn is_dead(&mut self, cx: &mut Context<'_>, is_idle: bool) -> bool {
        if self.awaits_pong && self.ping_pong.poll_pong(cx).is_ready() {
            self.awaits_pong = false;
            self.wait(INTERVAL);
        }
        while self.sleep.as_mut().poll(cx) == Poll::Ready(()) {
            if self.awaits_pong {
                return true;
            }
            self.awaits_pong = is_idle && self.ping_pong.send_ping(Ping::opaque()).is_ok();
            if self.awaits_pong {
                // Registers the waker for the pong.
                let _ = self.ping_pong.poll_pong(cx);
            }
            self.wait(if self.awaits_pong { TIMEOUT } else { INTERVAL });
        }
        false
    }

    fn wait(&mut self, time: Duration) {
        self.sleep.as_mut().reset(Instant::now() + time);
    }
}
