//! Promotes and aborts staged versions, and decides what a new tip does meanwhile.

use std::sync::Arc;
use std::time::SystemTime;

use weir_protocol::descriptor::{Descriptor, Generation};
use weir_rollout::{Cause, Contents, Staged, State, TipStep, VerdictKind, on_tip};
use weir_source::Service;

use super::draft::{BuiltContent, Change, Draft, VisibleChange, last_generation};
use super::staging::{StageSource, StagedFor};
use crate::error::{PublishError, StageError, VersionChangeError};
use crate::request::{Author, VersionChange};
use crate::stored::history_line::{Because, Line, LineEvent, Why};
use crate::stored::row::{Aborted, Pin, Row, Staging, StoredVersion, parsed, unix_milliseconds};

impl Draft<'_> {
    /// What a tip with this content does over a version in force. `None`: it is published as always. `Some(None)`: it changes
    /// nothing that edges see: it waits, or it is staged for nobody until the first stage of its rollout begins.
    pub(crate) fn on_tip(
        &mut self,
        row: &mut Row,
        current: &Descriptor,
        built: &BuiltContent,
        now: SystemTime,
    ) -> Result<Option<Option<Change>>, PublishError> {
        let (service, digest) = (&built.candidate.service, built.content.digest);
        let followed = service.followed.to_string();
        let follows_same = current.followed_ref() == followed;
        let has_plan = service.rollout.is_some();
        let is_unbegun = row.staged.as_ref().is_some_and(|staged| !staged.has_begun());
        if !has_plan && (!follows_same || is_unbegun) {
            // Another ref ends what is staged. What nobody has gives way once the service has no plan.
            return Ok(None);
        }
        // An abort counts only for the ref that it was made for.
        let follows = |of: &Option<String>| of.as_ref().map_or(follows_same, |of| *of == followed);
        let plan_of = |staged: &Staging| staged.rollout.as_ref().and_then(|state| state.plan.known()).cloned();
        let replaces = row.staged.as_ref().and_then(plan_of).is_some_and(|plan| plan.replaces());
        let contents = Contents {
            in_force: Some(current.publication().digest),
            staged: row.staged.as_ref().map(|staged| Staged {
                content: staged.digest,
                has_begun: staged.has_begun() && follows(&staged.followed_ref),
            }),
            aborted: row.aborted.as_ref().filter(|it| it.refuses() && follows(&it.followed_ref)).map(|it| it.digest),
        };
        match (on_tip(&contents, &digest, replaces), &mut row.staged) {
            (TipStep::Nothing, None) if contents.in_force == Some(digest) => {
                if let Some(aborted) = row.aborted.as_mut().filter(|aborted| aborted.is_lifted_by_another_tip()) {
                    aborted.is_lifted = true;
                    self.put(row.clone());
                }
                // Its ref or its representations may be others.
                Ok(None)
            }
            (TipStep::Publish, _) => Ok(None),
            (TipStep::Nothing, None) => Ok(Some(None)),
            (TipStep::Nothing, Some(staged)) => {
                if !std::mem::replace(&mut staged.was_tip, true) {
                    self.put(row.clone());
                }
                Ok(Some(None))
            }
            (TipStep::Abort, Some(staged)) if staged.was_tip && (follows_same || staged.rollout.is_some()) => {
                let author = Author::origin("the ref has the content in force again");
                let aborted = self.abort_staged(row, author, now)?;
                row.aborted.iter_mut().for_each(|aborted| aborted.is_lifted = aborted.is_lifted_by_another_tip());
                self.put(row.clone());
                Ok(Some(aborted))
            }
            (TipStep::Abort, _) => Ok(None),
            (TipStep::Wait, _) => Ok(Some(None)),
            (TipStep::Begin, staged) => {
                let paused = staged.as_ref().and_then(|staged| staged.rollout.as_ref()?.paused.clone());
                let Some(plan) = self.rules.plans.of(service)? else {
                    return Ok(if staged.is_some() { Some(None) } else { None });
                };
                let author = Author::origin(&format!("rollout `{}`", plan.name()));
                let state = State { paused, ..State::new(plan, now) };
                let (source, to) = (StageSource::Built(Box::new(built.clone())), StagedFor::by_plan(state));
                self.stage_over(row.clone(), current, (service, source, to), &author, now)
                    .map(|(_, change)| Some(change))
            }
        }
    }

    /// As [`Draft::expected`], for what operators do to a rollout: they may expect the generation of the version that is
    /// staged, or was and was aborted.
    pub(super) fn expected_of_rollout(
        &self,
        service: &Arc<Service>,
        change: &VersionChange,
    ) -> Result<(Row, Option<Descriptor>), VersionChangeError> {
        let row = self.row(&service.name)?;
        let staged = row.staged.as_ref().map(|staged| staged.generation);
        let of = staged.or(row.aborted.as_ref().map(|aborted| aborted.generation));
        let is_of_it = change.expected.is_some() && change.expected == of;
        let expected = change.expected.filter(|_| !is_of_it);
        self.expected(service, &VersionChange { expected, ..change.clone() })
    }

    /// Aborts what is staged: the version in force is published again, above it. Returns false if nothing was.
    pub(crate) fn abort(
        &mut self,
        service: &Arc<Service>,
        change: &VersionChange,
    ) -> Result<(bool, Vec<VisibleChange>), VersionChangeError> {
        let (mut row, _) = self.expected_of_rollout(service, change)?;
        let aborted = self.abort_staged(&mut row, change.author.clone(), change.now)?;
        let Some(change) = aborted else { return Ok((false, Vec::new())) };
        self.put(row);
        Ok((true, vec![VisibleChange { service: service.clone(), change }]))
    }

    pub(super) fn abort_staged(
        &mut self,
        row: &mut Row,
        author: Author,
        now: SystemTime,
    ) -> Result<Option<Change>, PublishError> {
        let (Some(staged), Some(again)) = (row.staged.clone(), self.ended(row, now)?) else { return Ok(None) };
        let version = row.version(&staged.digest).map(|version| Ok::<_, PublishError>((version.key, parsed(version)?)));
        let version = version.transpose()?;
        self.publish_again(row, &again, now, Because { event: LineEvent::Aborted, author: author.clone() });
        let rollout = staged.rollout.map(|state| match &state.verdict {
            Some(verdict) if verdict.kind == VerdictKind::Aborted => state,
            before => {
                let agents = before.as_ref().map(|verdict| verdict.cause.agents.clone()).unwrap_or_default();
                let reason = author.reason.clone().unwrap_or_default();
                state.ended(VerdictKind::Aborted, Cause { reason, agents }, now)
            }
        });
        row.aborted = version.map(|(key, descriptor)| Aborted {
            digest: staged.digest,
            key,
            generation: staged.generation,
            revision_id: descriptor.publication().revision_id.clone(),
            at: unix_milliseconds(now),
            author,
            rollout,
            followed_ref: staged.followed_ref,
            is_lifted: false,
        });
        Ok(Some(Change::Published(again)))
    }

    /// Publishes for everybody what is staged, with its bytes, or what was staged and aborted, under a new generation. If the
    /// ref of the service leads elsewhere, the service is pinned to it. Returns its generation.
    pub(crate) fn promote(
        &mut self,
        service: &Arc<Service>,
        change: &VersionChange,
    ) -> Result<(Generation, Vec<VisibleChange>), StageError> {
        let (mut row, current) = self.expected_of_rollout(service, change)?;
        let nothing = || StageError::NothingStaged(service.name.clone());
        let staged = row.staged.as_ref().map(|staged| staged.digest);
        let digest = staged.or(row.aborted.as_ref().map(|aborted| aborted.digest));
        let (Some(digest), Some(_)) = (digest, current) else { return Err(nothing()) };
        if row.pin.is_some() {
            return Err(StageError::Pinned(service.name.clone()));
        }
        // Somebody may have aborted it while the operator looked at it.
        if staged.is_none() && change.expected.is_none() {
            return Err(StageError::Aborted(service.name.clone()));
        }
        let retained = row.retained.iter().find(|retained| retained.version.digest == digest);
        let retained = retained.ok_or_else(|| VersionChangeError::NotRetained(service.name.clone(), digest))?;
        let (version, only_staged) = (retained.version.clone(), retained.only_staged);
        let was_tip = row.staged.as_ref().is_some_and(|staged| staged.was_tip);
        // What a plan stages is what the service follows: a newer tip waits for it, and comes next.
        let by_plan = row.staged.as_ref().is_some_and(|staged| staged.rollout.is_some());
        let is_tip = by_plan || service.tip().map_or(was_tip, |tip| tip == version.key);
        let mut descriptor = parsed(&version)?;
        if staged.is_none() {
            let (followed_ref, last) = (service.followed.to_string(), last_generation(&row, service));
            descriptor = self.republished(descriptor.fields(), &followed_ref, last, change.now)?;
        }
        let Author { by, .. } = change.author.clone();
        // By hand, a version that was in force before is gone back to.
        let (why, by) = if only_staged || by_plan { (version.why, None) } else { (Why::RolledBack, by) };
        let version = StoredVersion::new(&descriptor, version.key, version.recipe, why, by);
        let mut changes = vec![Change::Published(descriptor.clone())];
        if !is_tip {
            let pin = Pin { since: unix_milliseconds(change.now), author: change.author.clone() };
            changes.insert(0, Change::Pinned(pin.shown()));
            row.pin = Some(pin);
        }
        let because = Because { event: LineEvent::Promoted, author: change.author.clone() };
        self.replace_current(row, &descriptor, version, change.now, because);
        if staged.is_none() {
            let because = Because { event: LineEvent::Promoted, author: change.author.clone() };
            self.lines.push(Line::of_staged(&descriptor, digest, change.now, because));
        }
        let pinned = (!is_tip).then(|| Line::pinned(&descriptor, change.now, change.author.clone()));
        self.lines.extend(pinned);
        let shown = |change| VisibleChange { service: service.clone(), change };
        Ok((descriptor.publication().generation, changes.into_iter().map(shown).collect()))
    }
}
