//! Families without their `service` label: what all services together look like.

use std::collections::BTreeMap;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Metric, MetricFamily, MetricType};

/// The label that is folded away.
pub(super) const SERVICE: &str = "service";

/// What becomes of the values of several services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fold {
    /// Counts add up.
    Sum,
    /// Of times the oldest, so that an alert on age sees the service that is worst off.
    Oldest,
    /// It says nothing about all services together: it is not shown.
    Hide,
}

/// Shows a family that has the label `service` as one without it.
pub(super) struct Folded<C> {
    family: C,
    fold: Fold,
}

impl<C: Collector> Folded<C> {
    pub(super) fn new(family: C, fold: Fold) -> Self {
        Self { family, fold }
    }
}

impl<C: Collector> Collector for Folded<C> {
    fn desc(&self) -> Vec<&Desc> {
        self.family.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.family.collect().into_iter().map(|family| fold(family, self.fold)).collect()
    }
}

fn fold(mut family: MetricFamily, how: Fold) -> MetricFamily {
    let kind = family.get_field_type();
    let mut folded: BTreeMap<Vec<(String, String)>, Metric> = BTreeMap::new();
    for mut metric in family.take_metric() {
        let mut labels = metric.take_label();
        labels.retain(|label| label.name() != SERVICE);
        let key = labels.iter().map(|label| (label.name().to_owned(), label.value().to_owned())).collect();
        metric.set_label(labels);
        match folded.get_mut(&key) {
            None => {
                folded.insert(key, metric);
            }
            Some(sum) => {
                let (a, b) = (value(sum, kind), value(&metric, kind));
                set_value(sum, kind, if how == Fold::Oldest { a.min(b) } else { a + b });
            }
        }
    }
    if how != Fold::Hide {
        family.set_metric(folded.into_values().collect());
    }
    family
}

fn value(metric: &Metric, kind: MetricType) -> f64 {
    if kind == MetricType::COUNTER { metric.get_counter().get_value() } else { metric.get_gauge().get_value() }
}

fn set_value(metric: &mut Metric, kind: MetricType, value: f64) {
    if kind == MetricType::COUNTER {
        let mut counter = metric.get_counter().clone();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = metric.get_gauge().clone();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{GaugeVec, IntCounterVec, Opts, Registry, TextEncoder};

    fn shown<C: Collector + 'static>(family: C, how: Fold) -> String {
        let registry = Registry::new();
        registry.register(Box::new(Folded::new(family, how))).unwrap();
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn counters_add_up_by_what_labels_are_left() {
        let polls = IntCounterVec::new(Opts::new("polls", "help"), &[SERVICE, "result"]).unwrap();
        for (service, result, count) in [("a", "good", 1), ("b", "good", 2), ("a", "bad", 4)] {
            polls.with_label_values(&[service, result]).inc_by(count);
        }
        assert_eq!(shown(polls, Fold::Sum), "polls{result=\"bad\"} 4\npolls{result=\"good\"} 3");
    }

    #[test]
    fn of_times_the_oldest_and_never_is_the_oldest() {
        let last = GaugeVec::new(Opts::new("last", "help"), &[SERVICE]).unwrap();
        assert_eq!(shown(last.clone(), Fold::Oldest), "", "of no service nothing is known");
        last.with_label_values(&["a"]).set(20.0);
        last.with_label_values(&["b"]).set(10.0);
        assert_eq!(shown(last.clone(), Fold::Oldest), "last 10");
        last.with_label_values(&["c"]);
        assert_eq!(shown(last.clone(), Fold::Oldest), "last 0");
        assert_eq!(shown(last, Fold::Hide), "");
    }
}
