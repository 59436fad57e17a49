//! What every listener counts of its connections: how many, how they began, and which bound kept others out.

use std::io;
use std::time::Instant;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};
use quinn::ConnectionError;

use super::metrics::ListenerMetrics;
use super::quic_metrics::QuicFamilies;
use crate::metric_families::MetricFamilies;

/// The families, for all listeners of a role.
#[derive(Debug, Clone)]
pub(super) struct ConnectionFamilies {
    open: IntGaugeVec,
    open_limit: IntGaugeVec,
    handshakes: IntGaugeVec,
    handshakes_limit: IntGaugeVec,
    handshake_duration: HistogramVec,
    handshake_failures: IntCounterVec,
    limited: IntCounterVec,
    stalled: IntCounterVec,
    pub(super) quic: QuicFamilies,
}

/// What a connection runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Quic,
}

impl Transport {
    fn as_str(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Quic => "quic",
        }
    }
}

/// What is spoken over a connection.
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

/// A bound on connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// Of those that are open.
    Connections,
    /// Of descriptors that the system gives this process.
    OpenFiles,
    /// Of handshakes under way.
    Handshakes,
    /// Of handshakes under way for clients that have not shown that their address is theirs.
    UnvalidatedHandshakes,
}

impl Bound {
    fn as_str(self) -> &'static str {
        match self {
            Bound::Connections => "connections",
            Bound::OpenFiles => "open_files",
            Bound::Handshakes => "handshakes",
            Bound::UnvalidatedHandshakes => "unvalidated_handshakes",
        }
    }
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakeFailure {
    /// It took too long.
    TimedOut,
    /// The client went away.
    Closed,
    /// The client broke it off with an alert: most often it does not trust the certificate.
    Rejected,
    /// What the client offers or shows is not accepted: no common protocol, no certificate, not TLS at all.
    Refused,
}

impl HandshakeFailure {
    const ALL: [Self; 4] = [Self::TimedOut, Self::Closed, Self::Rejected, Self::Refused];

    fn as_str(self) -> &'static str {
        match self {
            HandshakeFailure::TimedOut => "timeout",
            HandshakeFailure::Closed => "closed",
            HandshakeFailure::Rejected => "rejected",
            HandshakeFailure::Refused => "refused",
        }
    }

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

impl ConnectionFamilies {
    pub(super) fn register(families: MetricFamilies<'_>) -> prometheus::Result<Self> {
        let by_transport = &["listener", "transport"];
        let took = HistogramOpts::new("weir_http_handshake_duration_seconds", "TLS or QUIC handshakes that succeeded.")
            .buckets(vec![1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);
        Ok(Self {
            open: families.gauges(
                "weir_http_connections",
                "Connections that are open.",
                &["listener", "transport", "protocol"],
            )?,
            open_limit: families.gauges(
                "weir_http_connections_limit",
                "Connections that a listener holds at the most.",
                by_transport,
            )?,
            handshakes: families.gauges(
                "weir_http_handshakes",
                "TLS or QUIC handshakes that are under way.",
                by_transport,
            )?,
            handshakes_limit: families.gauges(
                "weir_http_handshakes_limit",
                "Handshakes that may be under way at the most.",
                by_transport,
            )?,
            handshake_duration: families.add(HistogramVec::new(took, by_transport)?)?,
            handshake_failures: families.counters(
                "weir_http_handshake_failures_total",
                "TLS or QUIC handshakes that failed, by reason.",
                &["listener", "transport", "reason"],
            )?,
            limited: families.counters(
                "weir_http_connections_limited_total",
                "Times that a bound kept a connection out: left waiting over TCP; over QUIC refused, or asked to come \
                 again with a proof of its address (unvalidated_handshakes).",
                &["listener", "transport", "bound"],
            )?,
            stalled: families.counters(
                "weir_http_stalled_total",
                "Answers that were cut because their client took nothing of them for too long.",
                &["listener", "protocol"],
            )?,
            quic: QuicFamilies::register(families)?,
        })
    }
}

impl ListenerMetrics {
    /// Says how much a listener takes.
    pub(super) fn limits(&self, transport: Transport, connections: usize, handshakes: usize) {
        let labels = [self.listener(), transport.as_str()];
        let as_gauge = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
        self.connections().open_limit.with_label_values(&labels).set(as_gauge(connections));
        self.connections().handshakes_limit.with_label_values(&labels).set(as_gauge(handshakes));
        // An alert on an increase does not see the one with which a series begins.
        for reason in HandshakeFailure::ALL {
            let labels = [self.listener(), transport.as_str(), reason.as_str()];
            self.connections().handshake_failures.with_label_values(&labels);
        }
    }

    /// A bound has kept a connection out.
    pub(super) fn limited(&self, transport: Transport, bound: Bound) {
        let labels = [self.listener(), transport.as_str(), bound.as_str()];
        self.connections().limited.with_label_values(&labels).inc();
    }

    /// A handshake has begun.
    pub(super) fn handshake(&self, transport: Transport) -> Handshake {
        let under_way = self.connections().handshakes.with_label_values(&[self.listener(), transport.as_str()]);
        Handshake { metrics: self.clone(), transport, begun: Instant::now(), _under_way: Held::new(under_way) }
    }

    /// An answer was cut because its client took nothing of it.
    pub(super) fn stalled(&self, protocol: Protocol) {
        self.connections().stalled.with_label_values(&[self.listener(), protocol.as_str()]).inc();
    }

    /// Counts an open connection until the guard is dropped.
    pub(super) fn open(&self, protocol: Protocol) -> Held {
        let labels = [self.listener(), protocol.transport().as_str(), protocol.as_str()];
        Held::new(self.connections().open.with_label_values(&labels))
    }
}

/// A handshake under way. One that is dropped was broken off by this end, in a drain.
pub(super) struct Handshake {
    metrics: ListenerMetrics,
    transport: Transport,
    begun: Instant,
    _under_way: Held,
}

impl Handshake {
    pub(super) fn succeeded(self) {
        let labels = [self.metrics.listener(), self.transport.as_str()];
        let took = self.begun.elapsed().as_secs_f64();
        self.metrics.connections().handshake_duration.with_label_values(&labels).observe(took);
    }

    pub(super) fn failed(self, why: HandshakeFailure) {
        let labels = [self.metrics.listener(), self.transport.as_str(), why.as_str()];
        self.metrics.connections().handshake_failures.with_label_values(&labels).inc();
    }
}

/// One of what a gauge counts, until it is dropped.
pub(super) struct Held(IntGauge);

impl Held {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.dec();
    }
}
