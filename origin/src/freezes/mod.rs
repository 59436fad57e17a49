//! Freezes: operators keep services as they are for a while. A small [list](crate::named_list) of the cluster that every origin
//! follows ([`store`]); publications ask [`weir_publish::Freezes`].

mod metrics;
mod store;

pub(crate) use self::metrics::FreezeMetrics;
pub(crate) use self::store::FreezeStore;
