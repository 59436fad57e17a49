//! What becomes of a staged version: it waits for nobody's decision but an operator's, or its ref goes back from it.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use weir_protocol::descriptor::{Descriptor, Generation};
use weir_source::Service;

use super::decision::{Content, PublishRequest, republished};
use super::draft::{Change, Draft, VisibleChange, last_generation};
use crate::error::{PublishError, StageError, VersionChangeError};
use crate::request::{Author, VersionChange};
use crate::stored::history_line::{Because, Line, LineEvent, Why};
use crate::stored::row::{Aborted, Pin, Row, StoredVersion, parsed, unix_milliseconds};

impl Draft<'_> {
    /// What a tip with this content does while something is staged, or was and was aborted. `None`: it is published as always.
    /// `Some(None)`: it waits.
    pub(crate) fn while_staged(
        &mut self,
        row: &mut Row,
        current: Option<&Descriptor>,
        (request, content): (&PublishRequest, &Content),
        now: SystemTime,
    ) -> Result<Option<Option<Change>>, PublishError> {
        // Another definition ends what is staged, and nobody has aborted its content.
        let current = current.filter(|current| current.followed_ref() == request.followed_ref);
        let Some(current) = current else { return Ok(None) };
        if row.aborted.as_ref().is_some_and(|aborted| aborted.digest == content.digest) {
            return Ok(Some(None));
        }
        let Some(staged) = &mut row.staged else { return Ok(None) };
        if current.publication().digest == content.digest {
            if !staged.was_tip {
                return Ok(None);
            }
            let author = Author::origin("the ref has the content in force again");
            let aborted = self.abort_staged(row, author, now)?;
            self.put(row.clone());
            return Ok(Some(aborted));
        }
        if staged.digest == content.digest && !staged.was_tip {
            staged.was_tip = true;
            self.put(row.clone());
        }
        Ok(Some(None))
    }

    /// Gives up what is staged: the version in force is published again, above it. Returns false if nothing was.
    pub(crate) fn abort(
        &mut self,
        service: &Arc<Service>,
        change: &VersionChange,
    ) -> Result<(bool, Vec<VisibleChange>), VersionChangeError> {
        let (mut row, _) = self.expected(service, change)?;
        let aborted = self.abort_staged(&mut row, change.author.clone(), change.now)?;
        let Some(change) = aborted else { return Ok((false, Vec::new())) };
        self.put(row);
        Ok((true, vec![VisibleChange { service: service.clone(), change }]))
    }

    fn abort_staged(&mut self, row: &mut Row, author: Author, now: SystemTime) -> Result<Option<Change>, PublishError> {
        let (Some(staged), Some(again)) = (row.staged.clone(), self.ended(row, now)?) else { return Ok(None) };
        let version = row.version(&staged.digest).map(|version| Ok::<_, PublishError>((version.key, parsed(version)?)));
        let version = version.transpose()?;
        self.publish_again(row, &again, now, Because { event: LineEvent::Aborted, author: author.clone() });
        row.aborted = version.map(|(key, descriptor)| Aborted {
            digest: staged.digest,
            key,
            generation: staged.generation,
            revision_id: descriptor.publication().revision_id.clone(),
            at: unix_milliseconds(now),
            author,
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
        let (mut row, current) = self.expected(service, change)?;
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
        let is_tip = service.tip().map_or(was_tip, |tip| tip == version.key);
        let mut descriptor = parsed(&version)?;
        if staged.is_none() {
            let (now, floor) = (self.rules.clocks.bounded(change.now, Instant::now()), self.rules.generation_floor);
            let last = last_generation(&row, service);
            descriptor =
                self.sign(republished(descriptor.fields(), &service.followed.to_string(), last, now, floor))?;
        }
        let Author { by, .. } = change.author.clone();
        // A version that was in force before is gone back to.
        let (why, by) = if only_staged { (version.why, None) } else { (Why::RolledBack, by) };
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
