//! Archives of upstreams, read within bounds.

mod layout;

pub(crate) use layout::{Component, Layout};
