//! Counts requests. Looking a counter up by its labels costs a good part of a poll, so each is looked up once and then found
//! by its index.

use std::sync::OnceLock;
use std::time::Duration;

use http::{Method, StatusCode, Version};
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

const PROTOCOLS: [&str; 3] = ["h1", "h2", "h3"];

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "DELETE", "other"];

/// The statuses of RFC 9110, from 100 on.
const STATUSES: usize = 500;

/// The counters and histograms of one listener.
#[derive(Debug)]
pub(super) struct RequestCounters {
    listener: &'static str,
    requests: IntCounterVec,
    duration: HistogramVec,
    /// By protocol, method and status; each appears when it is first counted.
    counters: Box<[OnceLock<IntCounter>]>,
    /// By protocol.
    durations: [OnceLock<Histogram>; PROTOCOLS.len()],
}

impl RequestCounters {
    pub(super) fn new(listener: &'static str, requests: IntCounterVec, duration: HistogramVec) -> Self {
        let counters = (0..PROTOCOLS.len() * METHODS.len() * STATUSES).map(|_| OnceLock::new()).collect();
        Self { listener, requests, duration, counters, durations: Default::default() }
    }

    pub(super) fn count(&self, version: Version, method: &Method, status: StatusCode, took: Duration) {
        let protocol = match version {
            Version::HTTP_3 => 2,
            Version::HTTP_2 => 1,
            _ => 0,
        };
        let name = method.as_str();
        let method = METHODS.iter().position(|known| *known == name).unwrap_or(METHODS.len() - 1);
        let labelled = || {
            let labels = [self.listener, PROTOCOLS[protocol], METHODS[method], status.as_str()];
            self.requests.with_label_values(&labels)
        };
        let index = usize::from(status.as_u16() - 100);
        if index < STATUSES {
            self.counters[(protocol * METHODS.len() + method) * STATUSES + index].get_or_init(labelled).inc();
        } else {
            labelled().inc();
        }
        let duration = self.durations[protocol]
            .get_or_init(|| self.duration.with_label_values(&[self.listener, PROTOCOLS[protocol]]));
        duration.observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{HistogramOpts, Opts};

    #[test]
    fn each_request_counts_under_its_own_labels() {
        let labels = ["listener", "protocol", "method", "status"];
        let requests = IntCounterVec::new(Opts::new("requests", "requests"), &labels).unwrap();
        let duration = HistogramVec::new(HistogramOpts::new("duration", "duration"), &labels[..2]).unwrap();
        let counters = RequestCounters::new("agents", requests.clone(), duration.clone());
        let all = [Version::HTTP_11, Version::HTTP_2, Version::HTTP_3].into_iter().flat_map(|version| {
            let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "BREW"];
            methods.into_iter().flat_map(move |method| [100, 200, 304, 599, 600, 999].map(|s| (version, method, s)))
        });
        for (version, method, status) in all {
            let (method, status) = (method.parse().unwrap(), StatusCode::from_u16(status).unwrap());
            counters.count(version, &method, status, Duration::ZERO);
        }
        for protocol in PROTOCOLS {
            for status in ["100", "200", "304", "599", "600", "999"] {
                for method in METHODS {
                    let counted = requests.with_label_values(&["agents", protocol, method, status]).get();
                    assert_eq!(counted, if method == "other" { 2 } else { 1 }, "{protocol} {method} {status}");
                }
            }
            assert_eq!(duration.with_label_values(&["agents", protocol]).get_sample_count(), 7 * 6);
        }
    }
}
