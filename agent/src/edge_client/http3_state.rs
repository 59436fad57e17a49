//! Whether HTTP/3 to one edge works: what its tasks report, and what the log says of it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::error::RequestError;
use super::protocol_selector::{Http3Change, ProtocolSelector, Protocols};
use crate::config::EdgeUrl;

pub(super) struct Http3State {
    url: EdgeUrl,
    selector: Mutex<ProtocolSelector>,
}

impl Http3State {
    pub(super) fn new(url: EdgeUrl, selector: ProtocolSelector) -> Self {
        Self { url, selector: Mutex::new(selector) }
    }

    pub(super) fn url(&self) -> &EdgeUrl {
        &self.url
    }

    /// The versions to try for a request.
    pub(super) fn select(&self, now: Instant) -> Protocols {
        self.selector().select(now)
    }

    /// Whether HTTP/3 works; `None` before the first try.
    pub(super) fn is_usable(&self) -> Option<bool> {
        self.selector().http3_usable()
    }

    pub(super) fn handshake_began(&self) {
        self.selector().handshake_began();
    }

    pub(super) fn handshake_ended(&self, error: Option<&RequestError>, now: Instant) {
        let Some(error) = error else { return self.selector().connected() };
        tracing::debug!(edge = %self.url, %error, "a QUIC handshake failed");
        let change = match error {
            RequestError::Closed(_) => self.selector().http3_refused(now),
            _ => self.selector().http3_failed(now),
        };
        self.log(change);
    }

    /// An edge answered over HTTP/3.
    pub(super) fn succeeded(&self) {
        let change = self.selector().http3_succeeded();
        self.log(change);
    }

    /// A handshake failed, or a connection is dead.
    pub(super) fn failed(&self, now: Instant) {
        let change = self.selector().http3_failed(now);
        self.log(change);
    }

    /// A request over HTTP/2 has ended.
    pub(super) fn http2_ended(&self, is_answered: bool, now: Instant) {
        let change = self.selector().http2_ended(is_answered, now);
        self.log(change);
    }

    fn log(&self, change: Option<Http3Change>) {
        match change {
            Some(Http3Change::Usable) => tracing::info!(edge = %self.url, "HTTP/3 works"),
            Some(Http3Change::Blocked(backoff)) => tracing::warn!(
                edge = %self.url,
                retry_after = %humantime::format_duration(backoff),
                "HTTP/3 to the edge fails (UDP blocked?); using HTTP/2"
            ),
            None => {}
        }
    }

    fn selector(&self) -> MutexGuard<'_, ProtocolSelector> {
        self.selector.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
