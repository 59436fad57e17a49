//! The connection metrics of every listener: open connections, handshakes, and connections kept out by a limit.

use std::io;
use std::time::Instant;

use prometheus::IntGauge;
use quinn::ConnectionError;

use super::connection_families::HANDSHAKE_FAILURES;
use super::metrics::ListenerMetrics;

/// The transport protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Transport {
    Tcp,
    Quic,
}

/// The HTTP version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
    Http3,
}

impl Protocol {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Protocol::Http1 => "h1",
            Protocol::Http2 => "h2",
            Protocol::Http3 => "h3",
        }
    }

    fn transport(self) -> Transport {
        match self {
            Protocol::Http1 | Protocol::Http2 => Transport::Tcp,
            Protocol::Http3 => Transport::Quic,
        }
    }
}

/// A limit on connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Bound {
    /// Open connections.
    Connections,
    /// File descriptors of this process.
    OpenFiles,
    /// Concurrent handshakes.
    Handshakes,
    /// Concurrent handshakes of clients whose address is not validated.
    UnvalidatedHandshakes,
    /// Connections or handshakes of one source address.
    Source,
    /// The time until the first accepted request.
    FirstRequest,
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum HandshakeFailure {
    /// The handshake took too long.
    #[strum(serialize = "timeout")]
    TimedOut,
    /// The client closed the connection.
    Closed,
    /// The client sent an alert, most often because it does not trust the certificate.
    Rejected,
    /// The server refused the client: no common protocol, no accepted certificate, or no TLS.
    Refused,
}

impl HandshakeFailure {
    pub(super) fn of_tls(error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::AlertReceived(_)) => HandshakeFailure::Rejected,
            Some(_) => HandshakeFailure::Refused,
            None => HandshakeFailure::Closed,
        }
    }

    pub(super) fn of_quic(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::TimedOut => HandshakeFailure::TimedOut,
            ConnectionError::ConnectionClosed(_) => HandshakeFailure::Rejected,
            ConnectionError::TransportError(_) | ConnectionError::VersionMismatch => HandshakeFailure::Refused,
            ConnectionError::ApplicationClosed(_)
            | ConnectionError::Reset
            | ConnectionError::LocallyClosed
            | ConnectionError::CidsExhausted => HandshakeFailure::Closed,
        }
    }
}

impl ListenerMetrics {
    /// Sets the limits of a listener.
    pub(super) fn limits(&self, transport: Transport, connections: usize, handshakes: usize) {
        let labels = [self.listener(), transport.into_str()];
        let as_gauge = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
        self.connections().open_limit.with_label_values(&labels).set(as_gauge(connections));
        self.connections().handshakes_limit.with_label_values(&labels).set(as_gauge(handshakes));
        // Shown at 0: an alert on an increase does not see a series begin.
        for reason in HANDSHAKE_FAILURES {
            let labels = [self.listener(), transport.into_str(), reason];
            self.connections().handshake_failures.with_label_values(&labels);
        }
    }

    /// Counts a connection that a limit kept out, or closed.
    pub(super) fn limited(&self, transport: Transport, bound: Bound) {
        let labels = [self.listener(), transport.into_str(), bound.into_str()];
        self.connections().limited.with_label_values(&labels).inc();
    }

    /// Counts a handshake in progress until the guard is dropped.
    pub(super) fn handshake(&self, transport: Transport) -> Handshake {
        let in_progress = self.connections().handshakes.with_label_values(&[self.listener(), transport.into_str()]);
        Handshake {
            metrics: self.clone(),
            transport,
            begun: Instant::now(),
            _in_progress: GaugeGuard::new(in_progress),
        }
    }

    /// Counts a response that was reset because its client was too slow.
    pub(super) fn stalled(&self, protocol: Protocol) {
        self.connections().stalled.with_label_values(&[self.listener(), protocol.as_str()]).inc();
    }

    /// Counts an open connection until the guard is dropped.
    pub(super) fn open(&self, protocol: Protocol) -> GaugeGuard {
        let labels = [self.listener(), protocol.transport().into_str(), protocol.as_str()];
        GaugeGuard::new(self.connections().open.with_label_values(&labels))
    }
}

/// A handshake in progress. Dropped without a result, it was aborted by a drain.
pub(super) struct Handshake {
    metrics: ListenerMetrics,
    transport: Transport,
    begun: Instant,
    _in_progress: GaugeGuard,
}

impl Handshake {
    pub(super) fn succeeded(self) {
        let labels = [self.metrics.listener(), self.transport.into_str()];
        let took = self.begun.elapsed().as_secs_f64();
        self.metrics.connections().handshake_duration.with_label_values(&labels).observe(took);
    }

    pub(super) fn failed(self, why: HandshakeFailure) {
        let labels = [self.metrics.listener(), self.transport.into_str(), why.into_str()];
        self.metrics.connections().handshake_failures.with_label_values(&labels).inc();
    }
}

/// Increments a gauge until it is dropped.
pub(super) struct GaugeGuard(IntGauge);

impl GaugeGuard {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
