//! Publications: what each service is at, durable before anybody sees it.

mod contents;
mod decision;
#[cfg(test)]
mod disorder;
mod expiry;
mod floor;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzzing;
mod generation;
pub(crate) mod history;
mod index;
mod inspection;
mod look_up;
mod pin;
mod references;
mod rows;
mod salvage;
mod signatures;
mod state;
mod tables;

pub(crate) use decision::{Content, Statement, is_current};
pub(crate) use expiry::Kept;
pub(crate) use inspection::{Inspected, RowKind, UnreadableRow, Version};
pub(crate) use look_up::Reference;
pub(crate) use pin::{Order, OrderError};
pub(crate) use salvage::{Salvage, Salvaged, Tarball};
pub(crate) use state::{Change, State, StateError, Stated};

#[cfg(test)]
pub(crate) use decision::tests;
