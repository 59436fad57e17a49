//! Registering metrics: each role owns its families, and there are no globals.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, Result as MetricResult,
};

/// Makes families and registers them. Each call fails when its name is taken, or is no name.
#[derive(Debug, Clone, Copy)]
pub struct MetricFamilies<'a>(pub &'a Registry);

impl MetricFamilies<'_> {
    /// Registers a family that was made elsewhere.
    ///
    /// # Errors
    /// Its name is taken.
    pub fn add<C: Collector + Clone + 'static>(&self, family: C) -> MetricResult<C> {
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    /// A counter without labels.
    ///
    /// # Errors
    /// The name is taken.
    pub fn counter(&self, name: &str, help: &str) -> MetricResult<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    /// Counters by labels.
    ///
    /// # Errors
    /// The name is taken.
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> MetricResult<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    /// Counters by one label whose values are known. Each is there from the beginning: an alert on an increase does not see
    /// the one with which a series begins.
    ///
    /// # Errors
    /// The name is taken.
    pub fn counters_of(&self, name: &str, help: &str, label: &str, values: &[&str]) -> MetricResult<IntCounterVec> {
        let counters = self.counters(name, help, &[label])?;
        for value in values {
            counters.with_label_values(&[value]);
        }
        Ok(counters)
    }

    /// A gauge without labels.
    ///
    /// # Errors
    /// The name is taken.
    pub fn gauge(&self, name: &str, help: &str) -> MetricResult<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    /// Gauges by labels.
    ///
    /// # Errors
    /// The name is taken.
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> MetricResult<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// A histogram without labels, with the upper ends of its buckets.
    ///
    /// # Errors
    /// The name is taken.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> MetricResult<Histogram> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }
}
