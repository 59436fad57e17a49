//! The words for where a rollout stands.

use weir_rollout::{Reason, Standing, VerdictKind};

/// Where a rollout stands, in one word.
pub(super) fn state_name(standing: &Standing) -> &'static str {
    match standing {
        Standing::Running(_) => "running",
        Standing::Waiting(reasons) if reasons.iter().any(|reason| matches!(reason, Reason::Paused(_))) => "paused",
        Standing::Waiting(reasons) if reasons.iter().all(|it| matches!(it, Reason::Window(_) | Reason::Frozen(_))) => {
            "scheduled"
        }
        Standing::Waiting(_) => "waiting",
        Standing::Ended(VerdictKind::Stopped) => "stopped",
        Standing::Ended(VerdictKind::Aborted | VerdictKind::Later) => "aborted",
    }
}
