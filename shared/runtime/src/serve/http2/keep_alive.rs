//! Idle clients that went away without a word are noticed; one that lives answers at no cost to its polls.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

/// How often an idle client is asked whether it is there.
const INTERVAL: Duration = Duration::from_secs(60);

/// How long it may take to answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Asks a client that has nothing under way whether it is there. One that has is watched otherwise: it must take its
/// answers.
pub(super) struct KeepAlive {
    ping_pong: PingPong,
    sleep: Pin<Box<Sleep>>,
    is_asked: bool,
}

impl KeepAlive {
    pub(super) fn new(ping_pong: PingPong) -> Self {
        Self { ping_pong, sleep: Box::pin(tokio::time::sleep(INTERVAL)), is_asked: false }
    }

    /// Whether the client has been asked and did not answer in time.
    pub(super) fn has_gone(&mut self, cx: &mut Context<'_>, is_idle: bool) -> bool {
        if self.is_asked && self.ping_pong.poll_pong(cx).is_ready() {
            self.is_asked = false;
            self.wait(INTERVAL);
        }
        while self.sleep.as_mut().poll(cx) == Poll::Ready(()) {
            if self.is_asked {
                return true;
            }
            self.is_asked = is_idle && self.ping_pong.send_ping(Ping::opaque()).is_ok();
            if self.is_asked {
                // Has the task woken when the answer comes.
                let _ = self.ping_pong.poll_pong(cx);
            }
            self.wait(if self.is_asked { TIMEOUT } else { INTERVAL });
        }
        false
    }

    fn wait(&mut self, time: Duration) {
        self.sleep.as_mut().reset(Instant::now() + time);
    }
}
