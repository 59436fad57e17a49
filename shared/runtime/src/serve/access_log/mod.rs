//! The access log: one line for each request, when its response has ended.
//!
//! The server knows method, status, bytes and time, the handler the rest ([`RequestFacts`]). A request that is answered
//! without waiting and is not logged costs a comparison.

mod config;
mod line_limit;
mod record;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::{Response, StatusCode, Uri};
use prometheus::{IntCounter, Registry};
use weir_protocol::route::Route;

pub use self::config::{AccessMode, LogConfig};
use self::line_limit::{Line, LineLimit};
use self::record::End;
pub(super) use self::record::Record;
pub use self::record::RequestFacts;
use super::exchange::Exchange;
use super::{Body, Peer};
use crate::metric_families::Family;

/// The target of the lines, for filters: `WEIR_LOG=info,weir_access=off`.
const TARGET: &str = "weir_access";

crate::metric_families! {
    /// The families of the access log.
    struct AccessLogMetrics {
        /// Lines of the access log that `log.access_lines` left out.
        left_out: IntCounter = "weir_access_log_left_out_total";
    }
}

/// The access log of a role. Cheap to clone. The default is off.
#[derive(Debug, Clone, Default)]
pub struct AccessLog(Option<(AccessMode, Arc<Lines>, FactsOf)>);

/// What a path says.
type FactsOf = fn(&str) -> RequestFacts;

/// Writes lines within the limit.
#[derive(Debug)]
struct Lines {
    limit: Mutex<LineLimit>,
    left_out: IntCounter,
}

impl AccessLog {
    /// The log of a role, with its metric.
    ///
    /// # Errors
    /// The metric was registered there before.
    pub fn new(config: &LogConfig, registry: &Registry) -> prometheus::Result<Self> {
        let left_out = AccessLogMetrics::register(registry)?.left_out;
        let lines = Lines { limit: Mutex::new(LineLimit::new(config.access_lines, Instant::now())), left_out };
        let facts_of: FactsOf = |path| RequestFacts::of(&Route::parse(path));
        Ok(Self((config.access != AccessMode::Off).then(|| (config.access, Arc::new(lines), facts_of))))
    }

    /// The same with what paths say that are not those of the data plane. Handlers do not see requests that end before them.
    #[must_use]
    pub fn naming(self, facts_of: fn(&str) -> RequestFacts) -> Self {
        Self(self.0.map(|(mode, lines, _)| (mode, lines, facts_of)))
    }

    /// The table of the families.
    pub fn families() -> &'static [Family] {
        AccessLogMetrics::FAMILIES
    }

    /// Whether a response with this status is logged, so that its [`RequestFacts`] are of use.
    pub fn wants(&self, status: StatusCode) -> bool {
        match &self.0 {
            None => false,
            Some((AccessMode::All, ..)) => true,
            Some(_) => status.as_u16() >= 400,
        }
    }

    /// The record of a request that waits for its response; `None`: the log is off.
    pub(super) fn begin(
        &self,
        listener: &'static str,
        exchange: &Exchange,
        peer: &Arc<Peer>,
        uri: &Uri,
    ) -> Option<Box<Record>> {
        let (.., facts_of) = self.0.as_ref()?;
        self.record(listener, exchange, peer, End::Abandoned(uri.clone(), *facts_of))
    }

    /// The record of a response, if it is logged. `begun`: that of the request, if it had to wait.
    pub(super) fn responded(
        &self,
        begun: Option<Box<Record>>,
        listener: &'static str,
        exchange: &Exchange,
        peer: &Arc<Peer>,
        response: &mut Response<Body>,
    ) -> Option<Box<Record>> {
        if !self.wants(response.status()) {
            begun.into_iter().for_each(|mut record| record.end = End::NotLogged);
            return None;
        }
        let end = End::Responded {
            status: response.status(),
            facts: response.extensions_mut().remove().unwrap_or_default(),
            bytes: 0,
            is_complete: false,
        };
        match begun {
            Some(mut record) => {
                record.end = end;
                Some(record)
            }
            None => self.record(listener, exchange, peer, end),
        }
    }

    fn record(&self, listener: &'static str, exchange: &Exchange, peer: &Arc<Peer>, end: End) -> Option<Box<Record>> {
        let (_, lines, _) = self.0.as_ref()?;
        let (lines, exchange, peer) = (lines.clone(), exchange.clone(), peer.clone());
        Some(Box::new(Record { lines, listener, exchange, peer, end }))
    }
}

impl Lines {
    /// Whether a line is written now. Reports how many were left out before it.
    fn admit(&self, now: Instant) -> bool {
        let line = self.limit.lock().unwrap_or_else(PoisonError::into_inner).next(now);
        match line {
            Line::LeftOut => self.left_out.inc(),
            Line::Written { left_out: 0 } => {}
            Line::Written { left_out } => {
                tracing::warn!(target: TARGET, left_out, "lines of the access log beyond `log.access_lines` were dropped");
            }
        }
        line != Line::LeftOut
    }
}
