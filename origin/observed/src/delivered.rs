//! Which releases arrive at agents, and when their hooks are done: what changes of rows say.
//!
//! Only a row that is known changes: what a message with `full` says may have been so for long.

use weir_protocol::descriptor::Generation;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::HookState;

use crate::compact::{CompactRow, NONE, Pools};

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
}

/// Notes in the row `after` whether its hook is still to be counted, and returns what has come with it. `is_full`: the
/// message says nothing of when.
pub(crate) fn compare(pools: &Pools, before: &CompactRow, after: &mut CompactRow, is_full: bool) -> Vec<Delivered> {
    if before.current == NONE || after.current == NONE {
        return Vec::new();
    }
    let (old, new) = (pools.releases.get(before.current), pools.releases.get(after.current));
    let is_same = old.digest == new.digest;
    if is_same {
        after.awaits_hook &= before.awaits_hook;
    }
    // A release is counted once, also if an agent goes back and forth.
    let is_next = !is_same && new.generation > old.generation;
    let hook_ends = after.hook == HookState::Succeeded && if is_same { before.awaits_hook } else { is_next };
    let stages = [(Stage::Current, is_next), (Stage::Hook, hook_ends)];
    let stages = stages.into_iter().filter(|(_, comes)| *comes && !is_full && new.generation > 0);
    let delivered = |(stage, _)| Delivered { service: new.service.clone(), generation: new.generation, stage };
    stages.map(delivered).collect()
}
