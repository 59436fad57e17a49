//! What is staged: a later version, inside the descriptor of the version in force, for some agents.
//!
//! It has a generation of its own, above the one in force. So whatever ends it is published above that: an agent is never
//! offered less than it holds.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use weir_protocol::descriptor::{Descriptor, DescriptorFields, Generation};
use weir_protocol::digest::TarballDigest;
use weir_protocol::staged::{Audience, Staged};
use weir_source::Service;

use super::decision::{published, republished, rewritten};
use super::draft::{BuiltContent, Change, Draft, VisibleChange, last_generation, request_of};
use super::retention::{trim, unstage};
use crate::error::{PublishError, StageError, VersionChangeError};
use crate::request::VersionChange;
use crate::stored::history_line::Line;
use crate::stored::row::{Retained, Row, Staging, StoredVersion, parsed, unix_milliseconds};

/// What is to be staged.
pub(crate) enum StageSource {
    Retained(TarballDigest),
    Built(Box<BuiltContent>),
}

/// How the state changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The same version for more agents: it stays as it is.
    Widen,
    /// The first one over the version in force.
    Begin,
    /// Agents that have what is staged now may not get what is staged then, so the version in force is published again,
    /// above the former and below the latter.
    Replace,
}

/// Pure: what follows from what is staged.
fn step(before: Option<&Staging>, digest: &TarballDigest, audience: &Audience) -> Step {
    match before {
        None => Step::Begin,
        Some(before) if before.digest == *digest && audience.covers(&before.audience) => Step::Widen,
        Some(_) => Step::Replace,
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
    /// Stages a version, in place of what is staged. Returns its generation.
    pub(crate) fn stage(
        &mut self,
        service: &Arc<Service>,
        source: StageSource,
        audience: Audience,
        change: &VersionChange,
    ) -> Result<(Generation, Vec<VisibleChange>), StageError> {
        let (mut row, current) = self.expected(service, change)?;
        let current = current.ok_or_else(|| StageError::NothingInForce(service.name.clone()))?;
        let digest = source.digest();
        if current.publication().digest == digest {
            return Err(StageError::InForce(service.name.clone()));
        }
        let step = step(row.staged.as_ref(), &digest, &audience);
        let (now, floor) = (self.rules.clocks.bounded(change.now, Instant::now()), self.rules.generation_floor);
        let last = last_generation(&row, service);
        let again = (step == Step::Replace).then(|| republished(&current, current.followed_ref(), last, now, floor));
        let staged_over = again.as_ref().map_or(last, |again| Some(again.publication.generation));
        let staged = match row.staged.take_if(|_| step == Step::Widen) {
            Some(before) => before.generation,
            None => {
                let version = self.staged_version(&row, service, source, staged_over, now)?;
                unstage(&mut row, now);
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
            audience,
            author: change.author.clone(),
        });
        row.generation = row.generation.max(staged);
        let is_again = again.is_some();
        let fields = with_staged(&row, again.unwrap_or_else(|| rewritten(&current)));
        let descriptor = self.sign(fields).map_err(|error| match error {
            PublishError::DescriptorTooLarge(bytes) => StageError::TooLarge(service.name.clone(), bytes),
            error => error.into(),
        })?;
        if let Some(version) = &mut row.current {
            *version = version.with(&descriptor);
            self.lines.extend(is_again.then(|| Line::published(&descriptor, version.why, version.by.clone())));
        }
        self.dropped_versions += trim(&mut row, self.rules.versions);
        self.put(row);
        let change = if is_again { Change::Published(descriptor) } else { Change::Revised(descriptor) };
        Ok((staged, vec![VisibleChange { service: service.clone(), change }]))
    }

    /// The version to stage, under the generation after `last`.
    fn staged_version(
        &self,
        row: &Row,
        service: &Service,
        source: StageSource,
        last: Option<Generation>,
        now: SystemTime,
    ) -> Result<StoredVersion, StageError> {
        let floor = self.rules.generation_floor;
        match source {
            StageSource::Retained(digest) => {
                let not_retained = || VersionChangeError::NotRetained(service.name.clone(), digest);
                let version = row.version(&digest).ok_or_else(not_retained)?;
                let fields = republished(&parsed(version)?, &service.followed.to_string(), last, now, floor);
                Ok(version.with(&self.sign(fields)?))
            }
            StageSource::Built(built) => {
                let BuiltContent { candidate, content, recipe } = *built;
                let descriptor = self.sign(published(&request_of(&candidate), &content, last, now, floor))?;
                Ok(StoredVersion::new(&descriptor, candidate.key, recipe, candidate.stepped_back.into(), None))
            }
        }
    }

    /// Ends what is staged at an operator's request. Returns false if nothing was.
    pub(crate) fn end_staging(
        &mut self,
        service: &Arc<Service>,
        change: &VersionChange,
    ) -> Result<(bool, Vec<VisibleChange>), VersionChangeError> {
        let (mut row, _) = self.expected(service, change)?;
        let Some(ended) = self.ended(&row, change.now)? else { return Ok((false, Vec::new())) };
        self.publish_again(&mut row, &ended, change.now);
        self.put(row);
        Ok((true, vec![VisibleChange { service: service.clone(), change: Change::Published(ended) }]))
    }

    /// Drops a retained version whose objects are lost. If it is staged, that ends.
    pub(crate) fn drop_lost(
        &mut self,
        service: &Arc<Service>,
        digest: &TarballDigest,
        now: SystemTime,
    ) -> Result<((), Vec<VisibleChange>), PublishError> {
        let mut row = self.row(&service.name)?;
        let ended = if row.is_staged(digest) { self.ended(&row, now)? } else { None };
        if let Some(ended) = &ended {
            self.publish_again(&mut row, ended, now);
        }
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
        let now = self.rules.clocks.bounded(now, Instant::now());
        let (last, floor) = (row.last_generation(), self.rules.generation_floor);
        let fields = republished(&before, before.followed_ref(), last, now, floor);
        self.sign(fields).map(Some)
    }

    /// The version in force with the staged one as it is now.
    pub(crate) fn restage(&mut self, mut row: Row, service: &Arc<Service>) -> Result<VisibleChange, PublishError> {
        let current = row.current.as_ref().ok_or_else(|| PublishError::Object("nothing is in force".to_owned()))?;
        let descriptor = self.sign(with_staged(&row, rewritten(&parsed(current)?)))?;
        row.current = Some(current.with(&descriptor));
        self.put(row);
        Ok(VisibleChange { service: service.clone(), change: Change::Revised(descriptor) })
    }

    /// The version in force becomes a superseded one, and its descriptor names nothing that is staged. If it cannot be signed
    /// again it stays as it is: nobody stages by a superseded version.
    pub(crate) fn detach_staged(&self, row: &mut Row) {
        let Some(current) = row.current.as_ref().filter(|_| row.staged.is_some()) else { return };
        let fields = current.descriptor().ok().map(|before| DescriptorFields { staged: None, ..rewritten(&before) });
        if let Some(Ok(descriptor)) = fields.map(|fields| self.sign(fields)) {
            row.current = Some(current.with(&descriptor));
        }
    }
}

/// Pure: the fields of the version in force, with what is staged.
pub(super) fn with_staged(row: &Row, fields: DescriptorFields) -> DescriptorFields {
    let staged = row.staged.as_ref().and_then(|staged| {
        let descriptor = row.version(&staged.digest)?.raw().to_owned();
        Some(Box::new(Staged { descriptor, audience: staged.audience.clone() }))
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
