//! The kinds of sources: what follows an upstream, and makes contents of what it holds, of which tarballs are built.
//!
//! A repository's agent holds a [`Source`] and knows none of the kinds. Another kind implements [`Kind`] and stands in
//! [`Source`], which tells from the URL which one it is; nothing else has to know of it.

mod failure;
/// In debug builds alone: what of the second kind the tests need.
#[cfg(debug_assertions)]
pub mod folder;
pub mod git;
mod kind;
mod shared;
mod which;

pub(crate) use failure::{Again, PollFailure, ServiceFailure};
pub(crate) use kind::{
    At, Commits, Fetched, Kind, ListRequest, NeededRequest, PollRequest, Polled, Resolved, UpkeepRequest,
};
pub(crate) use shared::Shared;
pub(crate) use which::{Source, faults_of_another_kind};

pub use crate::mirror::{FetchProgress, FetchSnapshot};
