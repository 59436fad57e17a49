//! Each bound beside its use, looked up when somebody collects the metrics.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts, Registry};

/// A bound's name, what is used of it, and the bound.
pub type Bound = (&'static str, u64, u64);

struct Bounds {
    in_use: IntGaugeVec,
    limit: IntGaugeVec,
    look: Box<dyn Fn() -> Vec<Bound> + Send + Sync>,
}

/// Registers the bounds that `look` gives, as `weir_<role>_bound_in_use` and `weir_<role>_bound_limit`.
///
/// # Errors
/// The names are taken.
pub fn register(
    registry: &Registry,
    role: &str,
    look: impl Fn() -> Vec<Bound> + Send + Sync + 'static,
) -> prometheus::Result<()> {
    let in_use =
        Opts::new(format!("weir_{role}_bound_in_use"), "How much of each bound of the program's work is in use.");
    let limit = Opts::new(
        format!("weir_{role}_bound_limit"),
        "How much of each bound of the program's work may be in use at the most.",
    );
    registry.register(Box::new(Bounds {
        in_use: IntGaugeVec::new(in_use, &["bound"])?,
        limit: IntGaugeVec::new(limit, &["bound"])?,
        look: Box::new(look),
    }))
}

impl Collector for Bounds {
    fn desc(&self) -> Vec<&Desc> {
        [&self.in_use, &self.limit].into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for (name, in_use, limit) in (self.look)() {
            self.in_use.with_label_values(&[name]).set(number(in_use));
            self.limit.with_label_values(&[name]).set(number(limit));
        }
        [&self.in_use, &self.limit].into_iter().flat_map(Collector::collect).collect()
    }
}
