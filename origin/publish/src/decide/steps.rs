//! The steps of a rollout by a plan, in the row of its service.

use std::sync::Arc;
use std::time::SystemTime;

use weir_protocol::staged::Audience;
use weir_rollout::{Action, Cause, Mark, State, Step, VerdictKind};
use weir_source::Service;

use super::decision::rewritten;
use super::draft::{Change, Draft, VisibleChange};
use super::staging::with_staged;
use crate::error::{PublishError, StageError};
use crate::request::{Author, StagedByPlan, VersionChange};
use crate::stored::history_line::{Because, Line, LineEvent, StagingLine};
use crate::stored::row::{Row, Staging, parsed, unix_milliseconds};

impl Draft<'_> {
    /// Does what follows from where a rollout stood. Returns false if it stands elsewhere now.
    pub(crate) fn advance(
        &mut self,
        service: &Arc<Service>,
        seen: &StagedByPlan,
        step: Step,
        change: &VersionChange,
    ) -> Result<(bool, Vec<VisibleChange>), StageError> {
        let (mut row, current) = self.expected(service, change)?;
        // As they are stored, with times of whole seconds: one may have been read.
        let stored = |state: &State| serde_json::to_string(state).expect("plain data");
        let is_seen = |staged: &Staging| {
            staged.generation == seen.generation
                && staged.rollout.as_ref().is_some_and(|state| stored(state) == stored(&seen.state))
        };
        if current.is_none() || !row.staged.as_ref().is_some_and(is_seen) {
            return Ok((false, Vec::new()));
        }
        let now = change.now;
        // It was decided before the freeze.
        let goes_on = matches!(step, Step::Begin { .. } | Step::Promote);
        if goes_on && self.rules.freezes.of(&service.name, now).is_some() {
            return Ok((false, Vec::new()));
        }
        let visible = match step {
            Step::Stay(_) => return Ok((false, Vec::new())),
            Step::Promote => return Ok((true, self.promote(service, change)?.1)),
            Step::Begin { stage, audience } => self.begin(&mut row, (stage, audience), now)?,
            Step::Stop(cause) => {
                let author = Author::origin(&cause.reason);
                Self::set_state(&mut row, seen.state.as_ref().clone().ended(VerdictKind::Stopped, cause, now));
                self.add_line(&row, LineEvent::Stopped, author, now)?;
                None
            }
            Step::Abort(cause) => {
                let author = Author::origin(&cause.reason);
                Self::set_state(&mut row, seen.state.as_ref().clone().ended(VerdictKind::Aborted, cause, now));
                self.abort_staged(&mut row, author, now)?
            }
        };
        self.put(row);
        let shown = |change| VisibleChange { service: service.clone(), change };
        Ok((true, visible.map(shown).into_iter().collect()))
    }

    /// More agents get the version. If both versions are too large for one descriptor, the rollout stops.
    fn begin(
        &mut self,
        row: &mut Row,
        (stage, audience): (usize, Audience),
        now: SystemTime,
    ) -> Result<Option<Change>, PublishError> {
        let (Some(current), Some(staged)) = (&row.current, &row.staged) else { return Ok(None) };
        let (current, Some(state)) = (parsed(current)?, staged.rollout.clone()) else { return Ok(None) };
        let name =
            state.plan.known().and_then(|plan| plan.stages().get(stage)).map(|stage| format!("stage `{}`", stage.name));
        let mut begun = row.clone();
        if let Some(staged) = &mut begun.staged {
            (staged.audience, staged.since) = (Some(audience), unix_milliseconds(now));
            staged.rollout = Some(state.clone().begun(stage, now));
        }
        match self.sign(with_staged(&begun, rewritten(&current))) {
            Ok(descriptor) => {
                begun.current = begun.current.map(|version| version.with(&descriptor));
                *row = begun;
                self.add_line(row, LineEvent::StageBegun, Author { by: None, reason: name }, now)?;
                Ok(Some(Change::Revised(descriptor)))
            }
            Err(error @ PublishError::DescriptorTooLarge(_)) => {
                let cause = Cause { reason: error.to_string(), agents: Vec::new() };
                Self::set_state(row, state.ended(VerdictKind::Stopped, cause, now));
                self.add_line(row, LineEvent::Stopped, Author::origin(&error.to_string()), now)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Does what an operator says.
    pub(crate) fn act(
        &mut self,
        service: &Arc<Service>,
        action: Action,
        change: &VersionChange,
    ) -> Result<(), StageError> {
        let (mut row, _) = self.expected_of_rollout(service, change)?;
        let state = row.staged.as_ref().and_then(|staged| staged.rollout.clone());
        let state = state.ok_or_else(|| StageError::NoPlan(service.name.clone()))?;
        let Author { by, reason } = change.author.clone();
        let event = match action {
            Action::Pause => LineEvent::Paused,
            Action::Resume => LineEvent::Resumed,
            Action::Approve(_) => LineEvent::Approved,
        };
        let state = state.after(action, Mark { at: change.now, by, reason });
        let state = state.map_err(|error| StageError::Action(service.name.clone(), error))?;
        Self::set_state(&mut row, state);
        self.add_line(&row, event, change.author.clone(), change.now)?;
        self.put(row);
        Ok(())
    }

    fn set_state(row: &mut Row, state: State) {
        if let Some(staged) = &mut row.staged {
            staged.rollout = Some(state);
        }
    }

    fn add_line(
        &mut self,
        row: &Row,
        event: fn(StagingLine) -> LineEvent,
        author: Author,
        now: SystemTime,
    ) -> Result<(), PublishError> {
        if let (Some(staged), Some(current)) = (&row.staged, &row.current) {
            self.lines.push(Line::of_staged(&parsed(current)?, staged.digest, now, Because { event, author }));
        }
        Ok(())
    }
}
