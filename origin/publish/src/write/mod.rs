//! Who writes: the repositories, each with its one writer, and the changes that go through it.

pub(crate) mod alignment;
pub(crate) mod attempt;
pub(crate) mod delta_queue;
pub(crate) mod deltas;
pub(crate) mod homes;
pub(crate) mod keeper;
pub(crate) mod mirror;
pub(crate) mod oci_layer;
pub(crate) mod ownership;
pub(crate) mod pending_change;
pub(crate) mod protection;
pub(crate) mod repositories;
pub(crate) mod repository;
pub(crate) mod state_write;
pub(crate) mod validity;
pub(crate) mod write_pace;
pub(crate) mod writer;
