//! The metrics of every listener, in the same families for all roles.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, Uri};
use prometheus::{HistogramVec, IntCounterVec, Registry};

use super::access_log::{AccessLog, Record};
use super::connection_families::ConnectionMetrics;
use super::exchange::Exchange;
use super::quic_metrics::QuicMetrics;
use super::request_counters::RequestCounters;
use super::{Body, Peer};
use crate::metric_families::Family;

crate::metric_families! {
    /// The families of requests, for all listeners of a role.
    pub(super) struct RequestMetrics {
        /// Requests answered.
        requests: IntCounterVec = "weir_http_requests_total" { listener, protocol, method, status };
        /// Time from the end of a request's headers to the response's headers.
        duration: HistogramVec = "weir_http_request_duration_seconds" { listener, protocol }
            [5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0, 5.0, 30.0];
    }
}

/// The families of all listeners of a role.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: RequestMetrics,
    connections: ConnectionMetrics,
    quic: QuicMetrics,
}

/// The families, for one listener.
#[derive(Debug, Clone)]
pub struct ListenerMetrics {
    families: HttpMetrics,
    listener: &'static str,
    counters: Arc<RequestCounters>,
    access_log: AccessLog,
}

impl HttpMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// They were registered there before.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            requests: RequestMetrics::register(registry)?,
            connections: ConnectionMetrics::register(registry)?,
            quic: QuicMetrics::register(registry)?,
        })
    }

    /// The table of the families.
    pub fn families() -> Vec<Family> {
        [RequestMetrics::FAMILIES, ConnectionMetrics::FAMILIES, QuicMetrics::FAMILIES].concat()
    }

    /// The families, for one listener.
    pub fn listener(&self, listener: &'static str) -> ListenerMetrics {
        let counters =
            Arc::new(RequestCounters::new(listener, self.requests.requests.clone(), self.requests.duration.clone()));
        ListenerMetrics { families: self.clone(), listener, counters, access_log: AccessLog::default() }
    }
}

impl ListenerMetrics {
    /// Logs the requests of the listener, too.
    #[must_use]
    pub fn with_access_log(self, access_log: &AccessLog) -> Self {
        Self { access_log: access_log.clone(), ..self }
    }

    /// The record of a request that waits for its response, if requests are logged.
    pub(super) fn request_begun(&self, exchange: &Exchange, peer: &Arc<Peer>, uri: &Uri) -> Option<Box<Record>> {
        self.access_log.begin(self.listener, exchange, peer, uri)
    }

    /// Counts a response and names the request in it. Returns its record, if it is logged. `begun`: that of the request, if
    /// it had to wait.
    pub(super) fn responded(
        &self,
        exchange: &Exchange,
        begun: Option<Box<Record>>,
        peer: &Arc<Peer>,
        response: &mut Response<Body>,
        took: Duration,
    ) -> Option<Box<Record>> {
        self.counters.count(exchange.version, &exchange.method, response.status(), took);
        exchange.name(response);
        self.access_log.responded(begun, self.listener, exchange, peer, response)
    }

    /// The value of the label `listener`.
    pub(super) fn listener(&self) -> &'static str {
        self.listener
    }

    /// The families of connections.
    pub(super) fn connections(&self) -> &ConnectionMetrics {
        &self.families.connections
    }

    /// The families of QUIC.
    pub(super) fn quic(&self) -> &QuicMetrics {
        &self.families.quic
    }
}
