//! Polls services: one task each, which polls, fetches and switches.

mod dictionary;
mod error;
mod follower;
mod poller;
mod schedule;

pub(crate) use dictionary::{Dictionaries, DictionaryMemory};
pub(crate) use error::PollError;
pub(crate) use follower::{Command, Follower, release_of};
pub(crate) use poller::Poller;
pub(crate) use schedule::Schedule;
