//! Who reads what is stored: requests, the catalog after a reload, and `verify`.

pub(crate) mod positions;
pub(crate) mod queries;
pub(crate) mod reloads;
pub(crate) mod revision_name;
pub(crate) mod rollout;
pub mod verify;
