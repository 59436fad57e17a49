//! Which releases arrive at agents, and when their hooks are done: what changes of rows say.
//!
//! Only a row that is known changes. What a message with `full` says may have been so for a while, as after an outage of the
//! edge or the agent: then the agent's own time counts, as far as it is between the last message about it and now.

use std::time::SystemTime;

use weir_protocol::descriptor::Generation;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::HookState;

use crate::compact::{CompactRow, NONE, Pools, from_unix};

/// How far a release has come at an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The agent has switched to it.
    Current,
    /// Its hook has succeeded.
    Hook,
}

/// A release has come so far at an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The service.
    pub service: ServiceName,
    /// The generation of the release.
    pub generation: Generation,
    /// How far.
    pub stage: Stage,
    /// When.
    pub at: SystemTime,
}

/// When what a message says has happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// When there was news of the agent before. `None`: the message says what has just changed.
    pub(crate) before: Option<SystemTime>,
    /// When it came.
    pub(crate) now: SystemTime,
}

/// Notes in the row `after` whether its hook is still to be counted, and returns what has come with it.
pub(crate) fn compare(pools: &Pools, before: &CompactRow, after: &mut CompactRow, times: Times) -> Vec<Delivered> {
    if before.current == NONE || after.current == NONE {
        return Vec::new();
    }
    let (old, new) = (pools.releases.get(before.current), pools.releases.get(after.current));
    let is_same = old.digest == new.digest;
    // A release is counted once, also if an agent goes back and forth. A hook is counted of a release that was.
    let is_next = !is_same && new.generation > old.generation;
    let awaited_hook = if is_same { before.awaits_hook } else { is_next };
    after.awaits_hook = awaited_hook && after.hook != HookState::None && after.hook != HookState::Succeeded;
    let mut delivered = Vec::new();
    let mut add = |stage, at| {
        delivered.push(Delivered { service: new.service.clone(), generation: new.generation, stage, at });
    };
    if is_next {
        add(
            Stage::Current,
            times.before.map_or(times.now, |before| from_unix(u64::from(after.since)).max(before).min(times.now)),
        );
    }
    if awaited_hook && after.hook == HookState::Succeeded {
        add(Stage::Hook, times.now);
    }
    delivered
}
