//! Freezes: operators keep services as they are for a while. One small record of the cluster, which every origin follows
//! ([`store`]); publications ask [`weir_publish::Freezes`].

mod metrics;
mod record;
mod store;

pub(crate) use self::metrics::FreezeMetrics;
pub(crate) use self::store::FreezeStore;
