//! What operators do to a rollout, other than to promote or abort it.

use weir_protocol::name::StageName;

use crate::plan::Stage;
use crate::state::{Approval, Mark, State, VerdictKind};

/// What an operator does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// No further stage begins.
    Pause,
    /// A rollout that is paused or stopped goes on, and its deadline counts from now.
    Resume,
    /// The next stage may begin: this one, if the operator names it.
    Approve(Option<StageName>),
}

/// An action has no sense now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    /// It stopped by itself.
    #[error("the rollout is stopped: resume, promote or abort it")]
    Stopped,
    /// It is over.
    #[error("the rollout was aborted: publish or stage another version")]
    Aborted,
    /// Neither paused nor stopped.
    #[error("the rollout is neither paused nor stopped, so there is nothing to resume")]
    Running,
    /// The next stage begins by itself.
    #[error("stage `{0}` comes next, and needs no approval: it has no `approve = true` in its plan")]
    NeedsNoApproval(StageName),
    /// The operator has looked at an earlier state: the stage that was approved, and the next one.
    #[error("stage `{0}` does not come next, `{1}` does: look at the rollout again")]
    OtherStage(StageName, StageName),
    /// A later release wrote the plan.
    #[error("a later release wrote the plan of this rollout: upgrade this origin")]
    LaterPlan,
}

impl State {
    /// Pure: the state after what an operator does.
    ///
    /// # Errors
    /// It would change nothing.
    pub fn after(self, action: Action, mark: Mark) -> Result<Self, ActionError> {
        match (action, self.verdict.as_ref().map(|verdict| verdict.kind)) {
            (_, Some(VerdictKind::Aborted | VerdictKind::Later)) => Err(ActionError::Aborted),
            (Action::Pause | Action::Approve(_), Some(VerdictKind::Stopped)) => Err(ActionError::Stopped),
            (Action::Pause, None) => Ok(Self { paused: Some(mark), ..self }),
            (Action::Resume, None) if self.paused.is_none() => Err(ActionError::Running),
            (Action::Resume, _) => {
                let deadline_from = self.deadline_from.map(|_| mark.at);
                Ok(Self { paused: None, verdict: None, deadline_from, ..self })
            }
            (Action::Approve(named), None) => {
                let (next, stage) = self.next_stage().ok_or(ActionError::LaterPlan)?;
                if let Some(named) = named.filter(|named| *named != stage.name) {
                    return Err(ActionError::OtherStage(named, stage.name.clone()));
                }
                if !stage.approve {
                    return Err(ActionError::NeedsNoApproval(stage.name.clone()));
                }
                Ok(Self { approved: Some(Approval { stage: next, mark }), ..self })
            }
        }
    }

    /// The stage that comes next. `None`: a later release wrote the plan.
    pub fn next_stage(&self) -> Option<(usize, &Stage)> {
        let next = self.stage.map_or(0, |stage| stage + 1);
        Some((next, self.plan.known()?.stages().get(next)?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::state::Cause;

    fn state() -> State {
        let plan = "name = \"p\"\nstages = [{ name = \"a\", percent = 5 }, { name = \"all\", approve = true }]";
        State::new(toml::from_str(plan).unwrap(), SystemTime::UNIX_EPOCH)
    }

    fn mark(seconds: u64) -> Mark {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        Mark { at, by: Some("ops".to_owned()), reason: None }
    }

    #[test]
    fn an_approval_is_for_the_next_stage_alone() {
        let name = |name: &str| name.parse::<StageName>().unwrap();
        let next = state().after(Action::Approve(None), mark(1));
        assert_eq!(next, Err(ActionError::NeedsNoApproval(name("a"))));
        let first = state().begun(0, mark(1).at);
        for (named, expected) in [(None, Ok(1)), (Some("all"), Ok(1)), (Some("a"), Err(name("a")))] {
            let approved = first.clone().after(Action::Approve(named.map(name)), mark(2));
            let expected = expected.map_err(|named| ActionError::OtherStage(named, name("all")));
            assert_eq!(approved.map(|state| state.approved.unwrap().stage), expected, "{named:?}");
        }
        let approved = first.after(Action::Approve(None), mark(2)).unwrap();
        assert_eq!(approved.begun(0, mark(3).at).approved, None);
    }

    #[test]
    fn what_is_paused_or_stopped_is_resumed_with_a_new_deadline() {
        let begun = state().begun(0, mark(1).at);
        assert_eq!(begun.clone().after(Action::Resume, mark(2)), Err(ActionError::Running));
        let paused = begun.clone().after(Action::Pause, mark(2)).unwrap();
        assert_eq!(paused.paused, Some(mark(2)));
        let stopped = paused.ended(VerdictKind::Stopped, Cause::default(), mark(3).at);
        assert_eq!(stopped.clone().after(Action::Pause, mark(4)), Err(ActionError::Stopped));
        assert_eq!(stopped.clone().after(Action::Approve(None), mark(4)), Err(ActionError::Stopped));
        let resumed = stopped.after(Action::Resume, mark(4)).unwrap();
        assert_eq!(resumed, State { deadline_from: Some(mark(4).at), ..begun.clone() });
        let aborted = begun.ended(VerdictKind::Aborted, Cause::default(), mark(3).at);
        for action in [Action::Pause, Action::Resume, Action::Approve(None)] {
            assert_eq!(aborted.clone().after(action, mark(4)), Err(ActionError::Aborted));
        }
    }
}
