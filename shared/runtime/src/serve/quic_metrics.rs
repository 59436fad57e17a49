//! What QUIC's paths are like, over all connections of a listener.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec};
use quinn::{Connection, ConnectionStats};

use super::metrics::ListenerMetrics;

/// How often a connection that lives on is looked at: the counters are behind by that much at the most.
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

/// A connection that is looked at now and then, and once more when this is dropped.
pub(super) struct Observed {
    connection: Connection,
    metrics: ListenerMetrics,
    counted: Counts,
}

/// What a connection has done since it began.
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

impl Observed {
    pub(super) fn new(connection: Connection, metrics: ListenerMetrics) -> Self {
        Self { connection, metrics, counted: Counts::default() }
    }

    /// Looks at the connection now and then, without an end.
    pub(super) async fn now_and_then(&mut self) {
        loop {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
            self.sample();
        }
    }

    fn sample(&mut self) {
        let stats = self.connection.stats();
        let now = Counts::from(&stats);
        let before = std::mem::replace(&mut self.counted, now);
        let families = self.metrics.quic();
        let listener = self.metrics.listener();
        let grew = |family: &IntCounterVec, labels: &[&str], now: u64, before: u64| {
            // Another path begins anew.
            family.with_label_values(labels).inc_by(now.checked_sub(before).unwrap_or(now));
        };
        grew(&families.packets_sent, &[listener], now.packets_sent, before.packets_sent);
        grew(&families.packets_lost, &[listener], now.packets_lost, before.packets_lost);
        grew(&families.congestion_events, &[listener], now.congestion_events, before.congestion_events);
        grew(&families.datagrams, &[listener, "sent"], now.datagrams_sent, before.datagrams_sent);
        grew(&families.datagrams, &[listener, "received"], now.datagrams_received, before.datagrams_received);
        families.rtt.with_label_values(&[listener]).observe(stats.path.rtt.as_secs_f64());
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.sample();
    }
}
