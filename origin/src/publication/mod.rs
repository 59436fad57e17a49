//! Publications: what each service is at, durable before anybody sees it.

mod decision;
mod generation;
pub(crate) mod history;
mod pin;
mod retention;
mod signatures;
mod state;

pub(crate) use decision::{Content, Statement, is_current};
pub(crate) use pin::{Order, OrderError};
pub(crate) use state::{Change, Reference, State, StateError, Stated};

#[cfg(test)]
pub(crate) use decision::tests;
