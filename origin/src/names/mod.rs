//! Which repository has the name of a service, in a cluster: what [`weir_ownership`] decides, carried out in the records, and
//! what the repositories of this origin do with names.

mod name_records;
mod service_names;

pub(crate) use self::name_records::{NameMetrics, NameRecords};
pub(crate) use self::service_names::ServiceNames;
