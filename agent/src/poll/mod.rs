//! Polls services: one task each, which polls, fetches and switches.

mod error;
mod exchange;
mod follower;
mod schedule;

pub(crate) use error::PollError;
pub(crate) use exchange::Exchange;
pub(crate) use follower::{Command, Follower, release_of};
pub(crate) use schedule::Schedule;
