//! Metric families: [`metric_families!`](crate::metric_families!) defines those of a component in one place, from which they
//! are registered and the reference is generated. There are no globals: each role has its own registry.

use std::time::SystemTime;

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Result as MetricResult,
};
use weir_protocol::token;

/// A time as a gauge shows it: seconds since 1970.
pub fn unix_seconds(at: SystemTime) -> i64 {
    i64::try_from(token::unix_seconds(at)).unwrap_or(i64::MAX)
}

/// A family, as it is registered and as the reference lists it.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The name in Prometheus.
    pub name: &'static str,
    /// What it measures.
    pub help: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The labels, each with its values; without values if they are not known in advance.
    pub labels: &'static [(&'static str, &'static [&'static str])],
    /// The upper bounds of a histogram's buckets.
    pub buckets: &'static [f64],
}

impl Family {
    /// All combinations of label values, without the label `left_out`; none if the values of a label are not known.
    fn known_values(&self, left_out: &str) -> Vec<Vec<&'static str>> {
        let labels = self.labels.iter().filter(|(label, _)| *label != left_out);
        labels.fold(vec![Vec::new()], |combinations, (_, values)| {
            let extended = |start: &Vec<_>| values.iter().map(|value| [start.as_slice(), &[*value]].concat()).collect();
            combinations.iter().flat_map::<Vec<_>, _>(extended).collect()
        })
    }
}

/// A type of the prometheus crate that [`metric_families!`](crate::metric_families!) can build.
pub trait Metric: Collector + Clone + 'static {
    /// What Prometheus calls it.
    const KIND: &'static str;

    /// Builds the family with these labels.
    ///
    /// # Errors
    /// The name or a label is not valid.
    fn build(family: &Family, labels: &[&str]) -> MetricResult<Self>;

    /// Creates a series at 0. Only counters do: an alert on an increase does not see a series begin.
    fn show(&self, _values: &[&str]) {}
}

macro_rules! metric {
    ($($type:ty: $kind:literal, |$family:ident, $labels:ident| $build:expr $(, |$counter:ident, $values:ident| $show:expr)?;)*) => {$(
        impl Metric for $type {
            const KIND: &'static str = $kind;

            fn build($family: &Family, $labels: &[&str]) -> MetricResult<Self> {
                $build
            }

            $(fn show(&self, $values: &[&str]) {
                let $counter = self;
                $show;
            })?
        }
    )*};
}

metric! {
    IntCounter: "counter", |family, _labels| Self::new(family.name, family.help);
    IntCounterVec: "counter", |family, labels| Self::new(Opts::new(family.name, family.help), labels),
        |counter, values| counter.with_label_values(values);
    CounterVec: "counter", |family, labels| Self::new(Opts::new(family.name, family.help), labels),
        |counter, values| counter.with_label_values(values);
    IntGauge: "gauge", |family, _labels| Self::new(family.name, family.help);
    IntGaugeVec: "gauge", |family, labels| Self::new(Opts::new(family.name, family.help), labels);
    Gauge: "gauge", |family, _labels| Self::new(family.name, family.help);
    GaugeVec: "gauge", |family, labels| Self::new(Opts::new(family.name, family.help), labels);
    Histogram: "histogram", |family, _labels| Self::with_opts(histogram(family));
    HistogramVec: "histogram", |family, labels| Self::new(histogram(family), labels);
}

fn histogram(family: &Family) -> HistogramOpts {
    HistogramOpts::new(family.name, family.help).buckets(family.buckets.to_vec())
}

/// Builds a family without the label `left_out`. Counters whose label values are all known show them at 0.
///
/// # Errors
/// The name or a label is not valid.
pub fn build<M: Metric>(family: &Family, left_out: &str) -> MetricResult<M> {
    let labels: Vec<&str> = family.labels.iter().map(|(label, _)| *label).filter(|label| *label != left_out).collect();
    let metric = M::build(family, &labels)?;
    if !labels.is_empty() {
        family.known_values(left_out).iter().for_each(|values| metric.show(values));
    }
    Ok(metric)
}

/// Defines the metric families of a component: a struct with a field for each, the table `FAMILIES`, and `register`.
///
/// The doc comment of a field is its help text in `/metrics` and in the reference. After the name stand the labels in braces,
/// with their values if these are known in advance, and the buckets of a histogram in brackets.
///
/// ```
/// weir_runtime::metric_families! {
///     /// What the kitchen counts.
///     pub struct Kitchen {
///         /// Meals that left the kitchen.
///         pub meals: prometheus::IntCounterVec = "kitchen_meals_total" { table, result: ["eaten", "returned"] };
///         /// How long guests waited.
///         pub wait: prometheus::Histogram = "kitchen_wait_seconds" [60.0, 600.0];
///     }
/// }
/// let kitchen = Kitchen::register(&prometheus::Registry::new())?;
/// kitchen.meals.with_label_values(&["7", "eaten"]).inc();
/// assert_eq!(Kitchen::FAMILIES[0].help, "Meals that left the kitchen.");
/// # Ok::<(), prometheus::Error>(())
/// ```
#[macro_export]
macro_rules! metric_families {
    (
        $(#[$of_struct:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $help:literal])+
                $of_field:vis $field:ident: $type:ty = $family:literal
                    $({ $($label:ident $(: $values:expr)?),+ })? $([$($bucket:expr),+])?;
            )+
        }
    ) => {
        $(#[$of_struct])*
        #[derive(Debug, Clone)]
        $vis struct $name {
            $($(#[doc = $help])+ $of_field $field: $type,)+
        }

        #[allow(dead_code, reason = "a component uses one way to build its families")]
        impl $name {
            /// The families, in the order of the fields.
            $vis const FAMILIES: &'static [$crate::metric_families::Family] = &[$(
                $crate::metric_families::Family {
                    name: $family,
                    help: concat!($($help),+).trim_ascii(),
                    kind: <$type as $crate::metric_families::Metric>::KIND,
                    labels: &[$($((stringify!($label), {
                        let _values: &'static [&'static str] = &[];
                        $(let _values: &'static [&'static str] = &$values;)?
                        _values
                    })),+)?],
                    buckets: &[$($($bucket),+)?],
                },
            )+];

            /// Builds the families without the label `left_out`, for a collector that registers itself.
            ///
            /// # Errors
            /// A name or a label is not valid.
            $vis fn build(left_out: &str) -> prometheus::Result<Self> {
                let mut families = Self::FAMILIES.iter();
                let mut next = || families.next().expect("one for each field");
                Ok(Self { $($field: $crate::metric_families::build(next(), left_out)?),+ })
            }

            /// The families, for a collector that registers itself.
            $vis fn collectors(&self) -> Vec<&dyn prometheus::core::Collector> {
                vec![$(&self.$field),+]
            }

            /// Registers the families.
            ///
            /// # Errors
            /// A name is registered already.
            $vis fn register(registry: &prometheus::Registry) -> prometheus::Result<Self> {
                Self::register_without(registry, "")
            }

            /// Registers the families without the label `left_out`.
            ///
            /// # Errors
            /// A name is registered already.
            $vis fn register_without(registry: &prometheus::Registry, left_out: &str) -> prometheus::Result<Self> {
                let built = Self::build(left_out)?;
                $(registry.register(Box::new(built.$field.clone()))?;)+
                Ok(built)
            }
        }
    };
}
