//! Polls services: one task each, which polls, fetches and switches.
//!
//! One task polls for all of them with one request, and one reads the events of an edge; both pass rows on. A row that says
//! what is on disk takes the place of a poll, and another one causes it.

mod apply;
mod batch;
mod batch_schedule;
mod dictionary;
mod error;
mod events;
mod failed_update;
mod follower;
mod frames;
mod interrupted;
mod kept;
mod parts;
mod pinned;
mod poller;
mod ready;
mod request;
mod response_status;
mod row;
mod schedule;
mod spool;
mod staged;

pub(crate) use batch::Batch;
pub(crate) use batch_schedule::BatchSchedule;
pub(crate) use events::EventStream;
pub(crate) use follower::Follower;
pub(crate) use interrupted::DownloadLimits;
pub(crate) use parts::UpdateParts;
pub(crate) use poller::Poller;
pub(crate) use schedule::Schedule;
