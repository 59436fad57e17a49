//! What foyer drops and lets go without a word, counted where an operator sees it. The rest of its metrics is left out.

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

/// Counts what leaves the memory.
#[derive(Debug)]
struct MemoryEvictions(CacheMetrics);

/// Counts the parts of the disk that begin to be cleared, in the gauge of those that are being cleared.
#[derive(Debug)]
struct Reclaims(CacheMetrics);

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
        if has("evict") {
            return Box::new(MemoryEvictions(self.0.clone()));
        }
        Box::new(Unseen)
    }
}

impl CounterOps for MemoryEvictions {
    fn increase(&self, value: u64) {
        self.0.memory_evictions.inc_by(value);
    }
}

impl GaugeVecOps for DropCounters {
    fn gauge(&self, labels: &[Cow<'static, str>]) -> BoxedGauge {
        if labels.iter().any(|value| value == "reclaiming") {
            return Box::new(Reclaims(self.0.clone()));
        }
        Box::new(Unseen)
    }
}

impl GaugeOps for Reclaims {
    fn increase(&self, value: u64) {
        self.0.small_reclaims.inc_by(value);
    }

    fn decrease(&self, _: u64) {}
    fn absolute(&self, _: u64) {}
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
        Box::new(Self(self.0.clone()))
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

impl HistogramVecOps for Unseen {
    fn histogram(&self, _: &[Cow<'static, str>]) -> BoxedHistogram {
        Box::new(Unseen)
    }
}
