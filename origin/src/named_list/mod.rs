//! A small record of the cluster that lists documents by name: [freezes](crate::freezes) and [plans](crate::plans). Every
//! origin follows it ([`store`]) and changes it by compare-and-set ([`record`]).

mod record;
mod store;

pub(crate) use self::record::Item;
pub(crate) use self::store::{NamedList, read_once};
