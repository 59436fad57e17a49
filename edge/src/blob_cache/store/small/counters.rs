//! What foyer drops without an error, counted where an operator sees it. The rest of its metrics is left out.

use std::borrow::Cow;

use mixtrics::metrics::{
    BoxedCounter, BoxedCounterVec, BoxedGauge, BoxedGaugeVec, BoxedHistogram, BoxedHistogramVec, CounterOps,
    CounterVecOps, GaugeOps, GaugeVecOps, HistogramOps, HistogramVecOps, RegistryOps,
};

use crate::metrics::{CacheMetrics, WriteDropped};

/// What foyer registers its metrics with.
#[derive(Debug)]
pub(super) struct DropCounters(CacheMetrics);

/// Counts a reason, for each time that foyer counts its own.
#[derive(Debug)]
struct Drops(CacheMetrics, WriteDropped);

/// A metric that nobody looks at.
#[derive(Debug)]
struct Unseen;

impl DropCounters {
    pub(super) fn new(metrics: CacheMetrics) -> Self {
        Self(metrics)
    }
}

impl CounterOps for Drops {
    fn increase(&self, value: u64) {
        (0..value).for_each(|_| self.0.write_dropped(self.1));
    }
}

impl CounterVecOps for DropCounters {
    fn counter(&self, labels: &[Cow<'static, str>]) -> BoxedCounter {
        let has = |label: &str| labels.iter().any(|value| value == label);
        if has("buffer_overflow") {
            return Box::new(Drops(self.0.clone(), WriteDropped::BufferFull));
        }
        if has("channel_overflow") {
            return Box::new(Drops(self.0.clone(), WriteDropped::QueueFull));
        }
        Box::new(Unseen)
    }
}

impl RegistryOps for DropCounters {
    fn register_counter_vec(
        &self,
        _: Cow<'static, str>,
        _: Cow<'static, str>,
        _: &'static [&'static str],
    ) -> BoxedCounterVec {
        Box::new(Self(self.0.clone()))
    }

    fn register_gauge_vec(
        &self,
        _: Cow<'static, str>,
        _: Cow<'static, str>,
        _: &'static [&'static str],
    ) -> BoxedGaugeVec {
        Box::new(Unseen)
    }

    fn register_histogram_vec(
        &self,
        _: Cow<'static, str>,
        _: Cow<'static, str>,
        _: &'static [&'static str],
    ) -> BoxedHistogramVec {
        Box::new(Unseen)
    }

    fn register_histogram_vec_with_buckets(
        &self,
        _: Cow<'static, str>,
        _: Cow<'static, str>,
        _: &'static [&'static str],
        _: Vec<f64>,
    ) -> BoxedHistogramVec {
        Box::new(Unseen)
    }
}

impl CounterOps for Unseen {
    fn increase(&self, _: u64) {}
}

impl GaugeOps for Unseen {
    fn increase(&self, _: u64) {}
    fn decrease(&self, _: u64) {}
    fn absolute(&self, _: u64) {}
}

impl HistogramOps for Unseen {
    fn record(&self, _: f64) {}
}

impl GaugeVecOps for Unseen {
    fn gauge(&self, _: &[Cow<'static, str>]) -> BoxedGauge {
        Box::new(Unseen)
    }
}

impl HistogramVecOps for Unseen {
    fn histogram(&self, _: &[Cow<'static, str>]) -> BoxedHistogram {
        Box::new(Unseen)
    }
}
