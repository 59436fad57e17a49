//! Plans of rollouts: those of the configuration file, and those of operators, which are a small
//! [list](crate::named_list) of the cluster that every origin follows ([`store`]). Publications ask [`weir_publish::Plans`].

mod known;
mod metrics;
mod store;

pub(crate) use self::known::DefinedPlan;
pub(crate) use self::metrics::PlanMetrics;
pub(crate) use self::store::{PlanStore, refused};
