//! What all layers of an origin share: the clocks of the servers that it talks to, when what failed is tried again, what is
//! wrong with a document, what the stored copy of a mirror consists of, and the steps at which tests kill it.
//!
//! The crate knows no other layer, does no I/O, and needs no async runtime.

pub mod back_off;
pub mod failpoint;
mod server_clocks;
pub mod stored_mirror;
mod validation_error;

pub use server_clocks::ServerClocks;
pub use validation_error::{ValidationError, joined};
