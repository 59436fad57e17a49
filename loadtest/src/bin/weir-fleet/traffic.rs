//! What arrives at the edges in each second: a herd would show here.

use std::net::SocketAddr;
use std::ops::{AddAssign, Range};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use weir_loadtest::scrape::Metrics;

/// The width of a histogram in characters.
const WIDTH: f64 = 60.0;

/// What edges count.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) handshakes: f64,
    pub(crate) batch_polls: f64,
    pub(crate) streams: f64,
    /// Single polls, and fetches.
    pub(crate) tarballs: f64,
    pub(crate) delta_bytes: f64,
    pub(crate) whole_bytes: f64,
}

impl Counts {
    fn of(metrics: &Metrics) -> Self {
        let requests = |route: &str| metrics.sum("weir_edge_requests_total", &[&format!("route=\"{route}\"")]);
        let delta_bytes = metrics.sum("weir_edge_sent_bytes_total", &["encoding=\"dcz\""]);
        Self {
            handshakes: metrics.sum("weir_http_handshake_duration_seconds_count", &["transport=\"quic\""]),
            batch_polls: requests("agent_services"),
            streams: requests("agent_events"),
            tarballs: requests("tarball"),
            delta_bytes,
            whole_bytes: metrics.sum("weir_edge_sent_bytes_total", &[]) - delta_bytes,
        }
    }

    fn map(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            handshakes: of(self.handshakes, other.handshakes),
            batch_polls: of(self.batch_polls, other.batch_polls),
            streams: of(self.streams, other.streams),
            tarballs: of(self.tarballs, other.tarballs),
            delta_bytes: of(self.delta_bytes, other.delta_bytes),
            whole_bytes: of(self.whole_bytes, other.whole_bytes),
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        *self = self.map(other, |one, other| one + other);
    }
}

/// The counts of all edges, second by second.
#[derive(Debug)]
pub(crate) struct Traffic {
    start: Instant,
    seconds: Mutex<Vec<Counts>>,
}

impl Traffic {
    /// Reads the metrics of the edges once a second, until the runtime ends.
    pub(crate) fn follow(edges: Vec<SocketAddr>) -> Arc<Self> {
        let traffic = Arc::new(Self { start: Instant::now(), seconds: Mutex::default() });
        let following = traffic.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            let mut before = vec![Counts::default(); edges.len()];
            loop {
                ticks.tick().await;
                let mut second = Counts::default();
                for (edge, before) in edges.iter().zip(&mut before) {
                    // While it restarts it has none.
                    let now = Metrics::read(*edge).await.map_or(Counts::default(), |metrics| Counts::of(&metrics));
                    // A new process counts from 0. Connections are the first that it counts.
                    let is_new = now.handshakes < before.handshakes || now.tarballs < before.tarballs;
                    second += now.map(if is_new { Counts::default() } else { *before }, |now, before| now - before);
                    *before = now;
                }
                let passed = following.start.elapsed().as_secs() as usize;
                let mut seconds = following.seconds.lock().unwrap_or_else(PoisonError::into_inner);
                if seconds.len() <= passed {
                    seconds.resize(passed + 1, Counts::default());
                }
                seconds[passed] += second;
            }
        });
        traffic
    }

    /// The second that it is now.
    pub(crate) fn now(&self) -> usize {
        self.start.elapsed().as_secs() as usize
    }

    /// The counts of some seconds. Those to come are missing.
    pub(crate) fn seconds(&self, range: Range<usize>) -> Vec<Counts> {
        let seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        seconds.iter().take(range.end).skip(range.start).copied().collect()
    }

    pub(crate) fn sum(&self, range: Range<usize>) -> Counts {
        let mut sum = Counts::default();
        self.seconds(range).into_iter().for_each(|second| sum += second);
        sum
    }

    /// One line for each second: connections, batch polls and event streams, and a bar of the first two.
    pub(crate) fn histogram(&self, range: Range<usize>) -> String {
        let seconds = self.seconds(range);
        let most = seconds.iter().map(|second| second.handshakes.max(second.batch_polls)).fold(1.0, f64::max);
        let bar = |count: f64, with: &str| with.repeat((WIDTH / 2.0 * count / most).ceil() as usize);
        let line = |(number, Counts { handshakes, batch_polls, streams, .. }): (usize, &Counts)| {
            let bars = format!("{:30}{}", bar(*handshakes, "="), bar(*batch_polls, "#"));
            format!("{number:5} s {handshakes:6} {batch_polls:6} {streams:6}  {}\n", bars.trim_end())
        };
        let head = "          conn.  polls streams  = connections, # batch polls\n";
        std::iter::once(head.to_owned()).chain(seconds.iter().enumerate().map(line)).collect()
    }

    /// All seconds as comma-separated values.
    pub(crate) fn csv(&self) -> String {
        let line = |(number, second): (usize, Counts)| {
            let Counts { handshakes, batch_polls, streams, tarballs, delta_bytes, whole_bytes } = second;
            format!("{number},{handshakes},{batch_polls},{streams},{tarballs},{delta_bytes},{whole_bytes}\n")
        };
        let head = "second,handshakes,batch_polls,streams,tarball_requests,delta_bytes,whole_bytes\n";
        std::iter::once(head.to_owned()).chain(self.seconds(0..usize::MAX).into_iter().enumerate().map(line)).collect()
    }
}
