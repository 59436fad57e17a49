//! Which node of a cluster owns which repository.

mod placement;

pub use self::placement::{Placement, place};
