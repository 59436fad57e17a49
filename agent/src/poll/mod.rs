//! Polls services: one task each, which polls, fetches and switches.

mod error;
mod follower;
mod poller;
mod schedule;

pub(crate) use error::PollError;
pub(crate) use follower::{Command, Follower, release_of};
pub(crate) use poller::Poller;
pub(crate) use schedule::Schedule;
