//! The QUIC metrics of a listener: packet loss, congestion and round-trip times over all connections.

use std::convert::Infallible;
use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec};
use quinn::{Connection, ConnectionStats};

/// How often an open connection is sampled: the counters lag by this much at most.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(60);

crate::metric_families! {
    /// The families of QUIC, for all listeners of a role.
    pub(super) struct QuicMetrics {
        /// QUIC packets sent. Counted once a minute and when a connection ends, as all metrics of QUIC.
        packets_sent: IntCounterVec = "weir_quic_packets_sent_total" { listener };
        /// QUIC packets lost. Divided by those sent: the loss rate.
        packets_lost: IntCounterVec = "weir_quic_packets_lost_total" { listener };
        /// Times that congestion made a connection send less.
        congestion_events: IntCounterVec = "weir_quic_congestion_events_total" { listener };
        /// UDP datagrams of QUIC connections.
        datagrams: IntCounterVec = "weir_quic_datagrams_total" { listener, direction: ["sent", "received"] };
        /// Smoothed round-trip times.
        rtt: HistogramVec = "weir_quic_path_rtt_seconds" { listener }
            [2.5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.2, 0.4, 0.8, 2.0];
    }
}

/// A connection whose statistics are sampled periodically, and once more on drop.
pub(super) struct SampledConnection {
    connection: Connection,
    metrics: QuicMetrics,
    listener: &'static str,
    last: Counts,
}

/// The totals of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    packets_sent: u64,
    packets_lost: u64,
    congestion_events: u64,
    datagrams_sent: u64,
    datagrams_received: u64,
}

impl From<&ConnectionStats> for Counts {
    fn from(stats: &ConnectionStats) -> Self {
        Self {
            packets_sent: stats.path.sent_packets,
            packets_lost: stats.path.lost_packets,
            congestion_events: stats.path.congestion_events,
            datagrams_sent: stats.udp_tx.datagrams,
            datagrams_received: stats.udp_rx.datagrams,
        }
    }
}

impl SampledConnection {
    pub(super) fn new(connection: Connection, metrics: QuicMetrics, listener: &'static str) -> Self {
        Self { connection, metrics, listener, last: Counts::default() }
    }

    /// Samples the connection periodically; never returns.
    pub(super) async fn sample_periodically(&mut self) -> Infallible {
        loop {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
            self.sample();
        }
    }

    fn sample(&mut self) {
        let stats = self.connection.stats();
        let now = Counts::from(&stats);
        let before = std::mem::replace(&mut self.last, now);
        let (families, listener) = (&self.metrics, self.listener);
        let add_growth = |family: &IntCounterVec, labels: &[&str], now: u64, before: u64| {
            // After a change of path the statistics begin at 0.
            family.with_label_values(labels).inc_by(now.checked_sub(before).unwrap_or(now));
        };
        add_growth(&families.packets_sent, &[listener], now.packets_sent, before.packets_sent);
        add_growth(&families.packets_lost, &[listener], now.packets_lost, before.packets_lost);
        add_growth(&families.congestion_events, &[listener], now.congestion_events, before.congestion_events);
        add_growth(&families.datagrams, &[listener, "sent"], now.datagrams_sent, before.datagrams_sent);
        add_growth(&families.datagrams, &[listener, "received"], now.datagrams_received, before.datagrams_received);
        families.rtt.with_label_values(&[listener]).observe(stats.path.rtt.as_secs_f64());
    }
}

impl Drop for SampledConnection {
    fn drop(&mut self) {
        self.sample();
    }
}
