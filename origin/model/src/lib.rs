//! What all layers of an origin share: its limits with their use, the clocks of the servers that it talks to, when what
//! failed is tried again, what is wrong with a document, and the steps at which tests kill it.
//!
//! The crate knows no other layer, and does no I/O.

pub mod back_off;
mod bounds;
pub mod failpoint;
mod server_clocks;
mod validation_error;

pub use bounds::Bounds;
pub use server_clocks::ServerClocks;
pub use validation_error::{ValidationError, joined};
