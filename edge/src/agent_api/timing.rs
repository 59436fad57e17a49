//! `Server-Timing` (W3C): the time that a response waited for origins.
//!
//! Only responses to `GET` that were not a hit have it.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Response};
use weir_runtime::serve::Body;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The time that a response waited. Stored in its extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// For the version: the catalog and the query to the origin.
    pub(crate) version: Duration,
    /// For the body: the object cache and the fetch. `None`: there was no body.
    pub(crate) body: Option<Duration>,
}

impl Timing {
    fn header(&self, cache: &str) -> String {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let version = milliseconds(self.version);
        match self.body {
            Some(body) => format!("cache;desc={cache}, origin;dur={version:.1}, fill;dur={:.1}", milliseconds(body)),
            None => format!("cache;desc={cache}, origin;dur={version:.1}"),
        }
    }
}

/// Writes the header. `cache`: the cache status, as in metrics.
pub(super) fn write(response: &mut Response<Body>, cache: &str) {
    if let Some(timing) = response.extensions_mut().remove::<Timing>() {
        let value = HeaderValue::try_from(timing.header(cache)).expect("words and numbers are visible ASCII");
        response.headers_mut().insert(SERVER_TIMING, value);
    }
}
