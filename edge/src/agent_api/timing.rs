//! `Server-Timing` (W3C): where the time went of an answer that was not at hand.
//!
//! It stands on answers to `GET` for which somebody was asked; what the table or a held body gives at once has none.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Response};
use weir_runtime::serve::Body;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// What an answer waited for. Kept in its extensions until it leaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waited {
    /// For the version: the table, and the origin's word behind it.
    pub(super) version: Duration,
    /// For the body: its cache, and the fill behind it. `None`: no body was needed.
    pub(super) body: Option<Duration>,
}

impl Waited {
    fn header(&self, cache: &str) -> String {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let version = milliseconds(self.version);
        match self.body {
            Some(body) => format!("cache;desc={cache}, origin;dur={version:.1}, fill;dur={:.1}", milliseconds(body)),
            None => format!("cache;desc={cache}, origin;dur={version:.1}"),
        }
    }
}

/// Writes what the answer waited for. `cache`: what the cache did, as in metrics.
pub(super) fn write(response: &mut Response<Body>, cache: &str) {
    if let Some(waited) = response.extensions_mut().remove::<Waited>() {
        let value = HeaderValue::try_from(waited.header(cache)).expect("words and numbers are visible ASCII");
        response.headers_mut().insert(SERVER_TIMING, value);
    }
}
