//! Who removes: superseded versions expire, then unreferenced objects are deleted.

pub(crate) mod expiry;
pub(crate) mod gc;
