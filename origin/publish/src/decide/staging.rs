//! What is staged: a later version, inside the descriptor of the version in force, for some agents.
//!
//! It has a generation of its own, above the one in force. So whatever ends it is published above that: an agent is never
//! offered less than it holds.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use weir_protocol::descriptor::{Descriptor, DescriptorFields, Generation};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::staged::{Audience, Staged};
use weir_rollout::State;
use weir_source::Service;

use super::decision::{published, republished, rewritten};
use super::draft::{BuiltContent, Change, Draft, VisibleChange, last_generation, request_of};
use super::retention::{trim, unstage};
use crate::error::{PublishError, StageError, VersionChangeError};
use crate::request::{Author, VersionChange};
use crate::stored::history_line::{Because, Line, LineEvent};
use crate::stored::row::{Retained, Row, Staging, StoredVersion, parsed, unix_milliseconds};

/// What is to be staged.
pub(crate) enum StageSource {
    Retained(TarballDigest),
    Built(Box<BuiltContent>),
}

/// Who gets what is to be staged.
pub(crate) struct StagedFor {
    audience: Option<Audience>,
    rollout: Option<State>,
}

/// How the state changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The same version for more agents: it stays as it is.
    Widen,
    /// No agent has what is staged before, if something is.
    Begin,
    /// Agents that have what is staged now may not get what is staged then, so the version in force is published again,
    /// above the former and below the latter.
    Replace,
}

/// Pure: what follows from what is staged.
fn step(before: Option<&Staging>, digest: &TarballDigest, audience: Option<&Audience>) -> Step {
    // Nobody has what has not begun.
    let Some(before) = before.filter(|before| before.has_begun()) else { return Step::Begin };
    let widens = before.audience.as_ref().zip(audience).is_some_and(|(before, audience)| audience.covers(before));
    if before.digest == *digest && widens { Step::Widen } else { Step::Replace }
}

impl StagedFor {
    /// Nobody, until the first stage of the rollout begins.
    pub(super) fn by_plan(rollout: State) -> Self {
        Self { audience: None, rollout: Some(rollout) }
    }
}

impl StageSource {
    fn digest(&self) -> TarballDigest {
        match self {
            Self::Retained(digest) => *digest,
            Self::Built(built) => built.content.digest,
        }
    }
}

impl Draft<'_> {
    /// Stages a version for agents that an operator names, in place of what is staged. Returns its generation.
    pub(crate) fn stage(
        &mut self,
        service: &Arc<Service>,
        source: StageSource,
        audience: Audience,
        change: &VersionChange,
    ) -> Result<(Generation, Vec<VisibleChange>), StageError> {
        let (row, current) = self.expected(service, change)?;
        let current = current.ok_or_else(|| StageError::NothingInForce(service.name.clone()))?;
        if row.pin.is_some() {
            return Err(StageError::Pinned(service.name.clone()));
        }
        if current.publication().digest == source.digest() {
            return Err(StageError::InForce(service.name.clone()));
        }
        if let StageSource::Retained(digest) = &source
            && row.version(digest).is_none()
        {
            return Err(VersionChangeError::NotRetained(service.name.clone(), *digest).into());
        }
        if let Some(rollout) = row.staged.as_ref().and_then(|staged| staged.rollout.as_ref()) {
            return Err(StageError::ByPlan(service.name.clone(), rollout.plan.name().to_owned()));
        }
        let to = StagedFor { audience: Some(audience), rollout: None };
        let staged = self.stage_over(row, &current, (service, source, to), &change.author, change.now);
        let (generation, change) = staged.map_err(|error| match error {
            PublishError::DescriptorTooLarge(bytes) => StageError::TooLarge(service.name.clone(), bytes),
            error => error.into(),
        })?;
        let shown = |change| VisibleChange { service: service.clone(), change };
        Ok((generation, change.map(shown).into_iter().collect()))
    }

    /// Stages a version, in place of what is staged. Returns its generation, and what edges see of it.
    pub(super) fn stage_over(
        &mut self,
        mut row: Row,
        current: &Descriptor,
        (service, source, to): (&Arc<Service>, StageSource, StagedFor),
        author: &Author,
        now: SystemTime,
    ) -> Result<(Generation, Option<Change>), PublishError> {
        let digest = source.digest();
        let mut ended = None;
        let by_plan = to.rollout.is_some();
        let was_tip = by_plan || row.staged.as_ref().is_some_and(|before| before.digest == digest && before.was_tip);
        let step = step(row.staged.as_ref(), &digest, to.audience.as_ref());
        let (now, floor) = (self.rules.clocks.bounded(now, Instant::now()), self.rules.generation_floor);
        let last = last_generation(&row, service);
        let again =
            (step == Step::Replace).then(|| republished(current.fields(), current.followed_ref(), last, now, floor));
        let staged_over = again.as_ref().map_or(last, |again| Some(again.publication.generation));
        let staged = match row.staged.take_if(|_| step == Step::Widen) {
            Some(before) => before.generation,
            None => {
                ended.clone_from(&row.staged);
                let version = self.staged_version(&row, service, source, staged_over, now)?;
                unstage(&mut row, now);
                if let Some(never_had) = ended.as_ref().filter(|ended| !ended.has_begun()) {
                    // It would only take the place of versions to go back to.
                    row.retained.retain(|of| !of.only_staged || of.version.digest != never_had.digest);
                }
                let generation = parsed(&version)?.publication().generation;
                retain_staged(&mut row, version, now);
                generation
            }
        };
        row.staged = Some(Staging {
            digest,
            generation: staged,
            in_force: again.as_ref().unwrap_or(current.fields()).publication.generation,
            since: unix_milliseconds(now),
            audience: to.audience,
            rollout: to.rollout,
            followed_ref: by_plan.then(|| service.followed.to_string()),
            was_tip,
            author: author.clone(),
        });
        row.aborted = None;
        row.generation = row.generation.max(staged);
        let is_again = again.is_some();
        // What is staged for nobody yet is not in the descriptor.
        let is_shown = is_again || row.staged.as_ref().is_some_and(Staging::has_begun);
        let descriptor = match is_shown {
            true => self.sign(with_staged(&row, again.unwrap_or_else(|| rewritten(current))))?,
            false => current.clone(),
        };
        if let Some(version) = &mut row.current {
            *version = version.with(&descriptor);
            self.lines.extend(is_again.then(|| Line::published(&descriptor, version.why, version.by.clone())));
        }
        let line = |digest, event| Line::of_staged(&descriptor, digest, now, Because { event, author: author.clone() });
        self.lines.extend(ended.map(|ended| line(ended.digest, LineEvent::StagingEnded)));
        self.lines.push(line(digest, LineEvent::Staged));
        self.dropped_versions += trim(&mut row, self.rules.versions);
        self.put(row);
        let change = if is_again { Change::Published(descriptor) } else { Change::Revised(descriptor) };
        Ok((staged, is_shown.then_some(change)))
    }

    /// The version to stage, under the generation after `last`.
    fn staged_version(
        &self,
        row: &Row,
        service: &Service,
        source: StageSource,
        last: Option<Generation>,
        now: SystemTime,
    ) -> Result<StoredVersion, PublishError> {
        let floor = self.rules.generation_floor;
        match source {
            StageSource::Retained(digest) => {
                let version =
                    row.version(&digest).ok_or_else(|| PublishError::Object(format!("{digest} is not retained")))?;
                let fields = republished(parsed(version)?.fields(), &service.followed.to_string(), last, now, floor);
                Ok(version.with(&self.sign(fields)?))
            }
            StageSource::Built(built) => {
                let BuiltContent { candidate, content, recipe } = *built;
                let descriptor = self.sign(published(&request_of(&candidate), &content, last, now, floor))?;
                Ok(StoredVersion::new(&descriptor, candidate.key, recipe, candidate.stepped_back.into(), None))
            }
        }
    }

    /// Drops a retained version whose objects are lost. If it is staged, that ends.
    pub(crate) fn drop_lost(
        &mut self,
        service: &Arc<Service>,
        digest: &TarballDigest,
        now: SystemTime,
    ) -> Result<((), Vec<VisibleChange>), PublishError> {
        let mut row = self.row(&service.name)?;
        let because = Author::origin("an object of the staged version is lost and cannot be rebuilt");
        let ended = if row.is_staged(digest) { self.end_staging(&mut row, now, because)? } else { None };
        let before = row.retained.len();
        row.retained.retain(|retained| retained.version.digest != *digest);
        if ended.is_some() || row.retained.len() < before {
            self.put(row);
        }
        let shown = |ended| VisibleChange { service: service.clone(), change: Change::Published(ended) };
        Ok(((), ended.map(shown).into_iter().collect()))
    }

    /// The version in force above what is staged, to be [published again](Draft::publish_again). `None`: nothing is staged, or
    /// another repository has published since.
    pub(crate) fn ended(&self, row: &Row, now: SystemTime) -> Result<Option<Descriptor>, PublishError> {
        let (Some(_), Some(current)) = (&row.staged, &row.current) else { return Ok(None) };
        let before = parsed(current)?;
        if before.publication().generation < row.generation_for_all() {
            return Ok(None);
        }
        self.republished(before.fields(), before.followed_ref(), row.last_generation(), now).map(Some)
    }

    /// Ends what is staged. The version in force is published again, unless another repository has published since.
    pub(crate) fn end_staging(
        &mut self,
        row: &mut Row,
        now: SystemTime,
        because: Author,
    ) -> Result<Option<Descriptor>, PublishError> {
        let ended = self.ended(row, now)?;
        if let Some(ended) = &ended {
            self.publish_again(row, ended, now, because);
        } else if let Some(current) = row.current.as_ref().map(parsed).transpose()? {
            self.staging_ended(row, &current, now, because.into());
            unstage(row, now);
        }
        Ok(ended)
    }

    /// Ends what is staged for agents that this version of the program does not understand. Returns whether something was.
    pub(crate) fn end_unknown_staging(&mut self, service: &ServiceName, now: SystemTime) -> Result<bool, PublishError> {
        let mut row = self.row(service)?;
        if !row.has_unknown_audience() {
            return Ok(false);
        }
        let because =
            Author::origin("this origin does not understand for whom it was staged: a later version wrote it");
        self.end_staging(&mut row, now, because)?;
        self.put(row);
        Ok(true)
    }

    /// A new revision of the version in force, with what is staged. If both are too large for one descriptor, that ends.
    pub(crate) fn revise(
        &mut self,
        row: &mut Row,
        fields: DescriptorFields,
        now: SystemTime,
    ) -> Result<Change, PublishError> {
        let holds = fields.publication.generation >= row.generation_for_all();
        let alone = (row.staged.is_some() && holds).then(|| fields.clone());
        match (self.sign(with_staged(row, fields)), alone) {
            (Err(error @ PublishError::DescriptorTooLarge(_)), Some(alone)) => {
                self.above_staged(row, &alone, now, Author::origin(&error.to_string()))
            }
            (signed, _) => {
                let descriptor = signed?;
                row.current = row.current.as_ref().map(|current| current.with(&descriptor));
                Ok(Change::Revised(descriptor))
            }
        }
    }

    /// Publishes the version in force again by these fields, above what is staged, which ends.
    pub(crate) fn above_staged(
        &mut self,
        row: &mut Row,
        fields: &DescriptorFields,
        now: SystemTime,
        because: Author,
    ) -> Result<Change, PublishError> {
        let descriptor = self.republished(fields, &fields.followed_ref, row.last_generation(), now)?;
        self.publish_again(row, &descriptor, now, because);
        Ok(Change::Published(descriptor))
    }

    /// The version in force with the staged one as it is now. `None`: the version with this digest is not staged.
    pub(crate) fn restage(
        &mut self,
        row: &mut Row,
        digest: &TarballDigest,
        now: SystemTime,
    ) -> Result<Option<Change>, PublishError> {
        let current = row.current.as_ref().filter(|_| row.is_staged(digest)).map(parsed).transpose()?;
        current.map(|current| self.revise(row, rewritten(&current), now)).transpose()
    }

    /// The history says who ended what is staged, and why. `descriptor`: what is in force then, or was at a deletion.
    pub(crate) fn staging_ended(&mut self, row: &Row, descriptor: &Descriptor, now: SystemTime, because: Because) {
        let line = |staged: &Staging| Line::of_staged(descriptor, staged.digest, now, because);
        self.lines.extend(row.staged.as_ref().map(line));
    }

    /// The version in force becomes a superseded one, and its descriptor names nothing that is staged, also if the row does
    /// not say so. If it cannot be signed again it stays as it is: nobody stages by a superseded version.
    pub(crate) fn detach_staged(&self, row: &mut Row) {
        let Some(current) = &row.current else { return };
        let Ok(before) = current.descriptor() else { return };
        if row.staged.is_none() && before.fields().staged.is_none() {
            return;
        }
        if let Ok(descriptor) = self.sign(rewritten(&before)) {
            row.current = Some(current.with(&descriptor));
        }
    }
}

/// Pure: the fields of the version in force, with what is staged.
pub(crate) fn with_staged(row: &Row, fields: DescriptorFields) -> DescriptorFields {
    let staged = row.staged.as_ref().and_then(|staged| {
        let descriptor = row.version(&staged.digest)?.raw().to_owned();
        Some(Box::new(Staged { descriptor, audience: staged.audience.clone()? }))
    });
    DescriptorFields { staged, ..fields }
}

/// Pure: puts a staged version among the retained ones: in its place if it is there, else first.
fn retain_staged(row: &mut Row, version: StoredVersion, now: SystemTime) {
    let known = row.retained.iter_mut().find(|retained| retained.version.digest == version.digest);
    match known {
        Some(known) => known.version = version,
        None => {
            let superseded_at = unix_milliseconds(now);
            row.retained.insert(0, Retained { superseded_at, followed: false, only_staged: true, version });
        }
    }
}
