//! The next state of a repository, in memory. The writer applies several changes to one draft and writes it once.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use weir_model::ServerClocks;
use weir_protocol::descriptor::{Descriptor, DescriptorFields, Generation, MAX_DESCRIPTOR_BYTES};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::ServiceName;
use weir_source::{Candidate, Service};
use weir_tarball::ContentKey;

use super::decision::{self, Content, Decision, PublishRequest};
use super::generation;
use super::retention::supersede;
use super::signer::Signer;
use crate::error::{PublishError, VersionChangeError};
use crate::freezes::Freezes;
use crate::plans::Plans;
use crate::request::{Author, Outcome, VersionChange};
use crate::stored::history_line::{Because, Line};
use crate::stored::page::{self, Page};
use crate::stored::record::RepositoryRecord;
use crate::stored::row::{Row, StoredVersion, parsed};

/// Options that apply to every change.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) generation_floor: Generation,
    /// Versions with a generation that no agent believes are published again, at the clock.
    pub(crate) lower_generations: bool,
    pub(crate) clocks: ServerClocks,
    /// The most superseded versions to retain for a service.
    pub(crate) versions: usize,
    pub(crate) signer: Arc<Signer>,
    pub(crate) plans: Plans,
    pub(crate) freezes: Freezes,
}

impl Rules {
    /// The generations that stay as they are at a start.
    pub(crate) fn bounds(&self, now: SystemTime) -> RangeInclusive<Generation> {
        generation::bounds(self.generation_floor, self.lower_generations, now)
    }
}

pub(crate) struct Draft<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) record: RepositoryRecord,
    /// The pages of all services that may change, by their position in the record.
    pages: BTreeMap<usize, Page>,
    pub(crate) rows: BTreeMap<ServiceName, Row>,
    pub(crate) lines: Vec<Line>,
    /// Content keys whose build had the published digest.
    pub(crate) known_keys: Vec<(ServiceName, ContentKey)>,
    is_changed: bool,
    /// Superseded versions that were dropped because there were too many.
    pub(crate) dropped_versions: usize,
}

/// A change that requests see once the draft is durable.
pub(crate) struct VisibleChange {
    pub(crate) service: Arc<Service>,
    pub(crate) change: Change,
}

#[derive(Debug, Clone)]
pub(crate) enum Change {
    Published(Descriptor),
    /// Other representations or another ref under the same generation.
    Revised(Descriptor),
    /// The draft changes nothing. The stored descriptor may still be newer than the one in memory.
    Current(Descriptor),
    /// Pinned by an operator.
    Pinned(weir_source::Pin),
    Unpinned,
}

/// A candidate with its content.
#[derive(Debug, Clone)]
pub(crate) struct BuiltContent {
    pub(crate) candidate: Candidate,
    pub(crate) content: Content,
    pub(crate) recipe: Option<ObjectDigest>,
}

impl<'a> Draft<'a> {
    /// `pages` must include the page of every service that changes.
    pub(crate) fn new(rules: &'a Rules, record: RepositoryRecord, pages: BTreeMap<usize, Page>) -> Self {
        let (rows, lines, known_keys) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { rules, record, pages, rows, lines, known_keys, is_changed: false, dropped_versions: 0 }
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Forces a write although nothing changed, as after damage.
    pub(crate) fn set_changed(&mut self) {
        self.is_changed = true;
    }

    /// Returns the record, the pages with all changes, the changed rows, and the new lines of the history.
    pub(crate) fn into_parts(mut self) -> (RepositoryRecord, BTreeMap<usize, Page>, Vec<Row>, Vec<Line>) {
        for row in self.rows.values() {
            let position = page::position(&self.record.pages, &row.service);
            self.pages.entry(position).or_default().set(row);
        }
        (self.record, self.pages, self.rows.into_values().collect(), self.lines)
    }

    /// The stored row of a service; an empty one if none is stored.
    pub(crate) fn row(&self, service: &ServiceName) -> Result<Row, PublishError> {
        if let Some(row) = self.rows.get(service) {
            return Ok(row.clone());
        }
        let page = self.pages.get(&page::position(&self.record.pages, service));
        let row = page.map_or(Ok(None), |page| page.row(service));
        let row = row.map_err(|error| PublishError::Object(error.to_string()))?;
        Ok(row.unwrap_or_else(|| Row::new(service.clone())))
    }

    pub(crate) fn put(&mut self, row: Row) {
        self.is_changed = true;
        self.rows.insert(row.service.clone(), row);
    }

    /// Publishes a content unless it is published already. After an error the draft is unchanged.
    pub(crate) fn publish(
        &mut self,
        built: BuiltContent,
        now: SystemTime,
    ) -> Result<(Outcome, Vec<VisibleChange>), PublishError> {
        let service = built.candidate.service.clone();
        if service.is_withdrawn() {
            return Ok((Outcome::Withdrawn, Vec::new()));
        }
        let mut row = self.row(&service.name)?;
        if row.is_moving {
            return Err(PublishError::Moving(service.name.clone()));
        }
        let current = current(&row, &service)?;
        if current.is_none() {
            // A pin does not survive a move to another repository: it was on a version of that one.
            row.pin = None;
        }
        let show = |change| VisibleChange { service: service.clone(), change };
        if let (Some(pin), Some(current)) = (&row.pin, &current) {
            let changes = [Change::Pinned(pin.shown()), Change::Current(current.clone())];
            return Ok((Outcome::Pinned, changes.into_iter().map(show).collect()));
        }
        // A freeze keeps what is in force, and what is staged.
        if let Some(current) = current.as_ref().filter(|_| self.rules.freezes.of(&service.name, now).is_some()) {
            return Ok((Outcome::Waits, vec![show(Change::Current(current.clone()))]));
        }
        let in_force = current.as_ref();
        if let Some(change) = in_force.map_or(Ok(None), |current| self.on_tip(&mut row, current, &built, now))? {
            return Ok((Outcome::Waits, change.map(show).into_iter().collect()));
        }
        let BuiltContent { candidate, content, recipe } = built;
        let (request, Candidate { key, stepped_back, .. }) = (request_of(&candidate), candidate);
        let now = self.rules.clocks.bounded(now, Instant::now());
        let last = last_generation(&row, &service);
        let floor = self.rules.generation_floor;
        match decision::decide(current.as_ref(), &request, &content, last, now, floor) {
            Decision::Unchanged => {
                self.known_keys.push((service.name.clone(), key));
                Ok((Outcome::Unchanged, current.map(|current| show(Change::Current(current))).into_iter().collect()))
            }
            Decision::Revise(fields) => {
                let is_redefined = current.is_some_and(|before| before.followed_ref() != fields.followed_ref);
                if let Some(version) = &mut row.current {
                    (version.key, version.recipe) = (key, recipe);
                }
                let change = if is_redefined && row.staged.is_some() {
                    self.above_staged(&mut row, &fields, now, Author::origin("the service follows another ref"))?
                } else {
                    self.revise(&mut row, fields, now)?
                };
                self.put(row);
                let is_again = matches!(change, Change::Published(_));
                Ok((if is_again { Outcome::Published } else { Outcome::Revised }, vec![show(change)]))
            }
            Decision::Publish(fields) => {
                let descriptor = self.sign(fields)?;
                let version = StoredVersion::new(&descriptor, key, recipe, stepped_back.into(), None);
                let because = Author::origin("another version was published for everybody");
                self.replace_current(row, &descriptor, version, now, because);
                Ok((Outcome::Published, vec![show(Change::Published(descriptor))]))
            }
        }
    }

    /// Publishes stored content without a build: a version with this key, of the service itself or of `source`.
    /// `None`: no version has this key any more, or it lacks the OCI form that the service needs.
    pub(crate) fn publish_known(
        &mut self,
        candidate: Candidate,
        source: &ServiceName,
        now: SystemTime,
    ) -> Result<Option<(Outcome, Vec<VisibleChange>)>, PublishError> {
        let source = self.row(source)?;
        let Some(version) = source.versions().find(|version| version.key == candidate.key) else { return Ok(None) };
        let (mut content, recipe) = (Content::of(&parsed(version)?), version.recipe);
        match (candidate.service.oci.is_on(), content.oci.is_some()) {
            (true, false) => return Ok(None),
            (true, true) => {}
            (false, _) => content.oci = None,
        }
        self.publish(BuiltContent { candidate, content, recipe }, now).map(Some)
    }

    /// Replaces the representations of a rebuilt version. Returns false if the version is gone.
    pub(crate) fn replace_representations(
        &mut self,
        service: &Arc<Service>,
        content: &Content,
        recipe: ObjectDigest,
        now: SystemTime,
    ) -> Result<(bool, Vec<VisibleChange>), PublishError> {
        let mut row = self.row(&service.name)?;
        let is_current = row.current.as_ref().is_some_and(|current| current.digest == content.digest);
        let retained = row.retained.iter_mut().map(|retained| &mut retained.version);
        let mut versions = row.current.iter_mut().chain(retained);
        let Some(version) = versions.find(|version| version.digest == content.digest) else {
            return Ok((false, Vec::new()));
        };
        let revised = decision::rebuilt(&parsed(version)?, content, service.source_url().as_deref());
        if revised.is_none() && version.recipe == Some(recipe) {
            return Ok((true, Vec::new()));
        }
        version.recipe = Some(recipe);
        let change = match revised {
            Some(fields) if is_current => Some(self.revise(&mut row, fields, now)?),
            Some(fields) => {
                *version = version.with(&self.sign(fields)?);
                self.restage(&mut row, &content.digest, now)?
            }
            None => None,
        };
        self.put(row);
        let shown = |change| VisibleChange { service: service.clone(), change };
        Ok((true, change.map(shown).into_iter().collect()))
    }

    /// Marks a service as moving to another repository. Returns what is published and defined there above; 0: nothing was
    /// here.
    pub(crate) fn withdraw(&mut self, service: &ServiceName, now: SystemTime) -> Result<Generation, PublishError> {
        let mut row = self.row(service)?;
        let was_staged = row.staged.is_some();
        if was_staged {
            self.end_staging(&mut row, now, Author::origin("the service moves to another repository"))?;
        }
        // The document there has to be newer, whatever the clocks say.
        let generation = row.generation.max(row.definition.as_ref().map_or(0, |definition| definition.written_at));
        let was_aborted = row.aborted.take().is_some();
        if !std::mem::replace(&mut row.is_moving, true) || was_staged || was_aborted {
            self.put(row);
        }
        Ok(generation)
    }

    /// Lets a service be published here, above its last generation in other repositories.
    pub(crate) fn adopt(&mut self, service: &ServiceName, last: Generation) -> Result<(), PublishError> {
        let mut row = self.row(service)?;
        if row.is_moving || row.generation < last {
            row.is_moving = false;
            row.generation = row.generation.max(last);
            self.put(row);
        }
        Ok(())
    }

    /// Supersedes the current version without a successor. Returns its last generation; `None` if the service was never
    /// published, or has moved: then it is not gone. `is_gone`: it is, also if a move began and did not come to its end.
    pub(crate) fn retire(
        &mut self,
        service: &ServiceName,
        is_gone: bool,
        now: SystemTime,
    ) -> Result<Option<Generation>, PublishError> {
        let mut row = self.row(service)?;
        let was_pinned = row.pin.take().is_some();
        let was_moving = row.is_moving;
        row.is_moving &= !is_gone;
        let generation = row.last_generation().filter(|_| !row.is_moving);
        let had_version = row.current.is_some();
        if had_version {
            let because = Author::origin("the service was deleted");
            if let Some(Ok(last)) = row.current.as_ref().map(StoredVersion::descriptor) {
                self.staging_ended(&row, &last, now, because.into());
            }
            row.aborted = None;
            self.detach_staged(&mut row);
            self.dropped_versions += supersede(&mut row, None, now, self.rules.versions);
        }
        if had_version || was_pinned || was_moving != row.is_moving {
            self.put(row);
        }
        Ok(generation)
    }

    /// Drops retained versions, and returns how many were found. A staged one stays.
    pub(crate) fn drop_versions(
        &mut self,
        service: &ServiceName,
        digests: &[TarballDigest],
    ) -> Result<usize, PublishError> {
        let mut row = self.row(service)?;
        let before = row.retained.len();
        let staged = row.staged.as_ref().map(|staged| staged.digest);
        let stays = |digest: &TarballDigest| !digests.contains(digest) || staged == Some(*digest);
        row.retained.retain(|retained| stays(&retained.version.digest));
        let dropped = before - row.retained.len();
        if dropped > 0 {
            self.put(row);
        }
        Ok(dropped)
    }

    /// Removes the row of a deleted service. Its generations go on growing, because the clock does.
    pub(crate) fn drop_tombstone(&mut self, service: &ServiceName) -> Result<(), PublishError> {
        if self.row(service)?.is_tombstone() {
            self.put(Row::new(service.clone()));
        }
        Ok(())
    }

    pub(crate) fn replace_current(
        &mut self,
        mut row: Row,
        descriptor: &Descriptor,
        version: StoredVersion,
        now: SystemTime,
        because: impl Into<Because>,
    ) {
        self.detach_staged(&mut row);
        self.supersede(&mut row, (descriptor, version), now, because.into());
        self.put(row);
    }

    /// Publishes the current version again, by this descriptor. Nothing is staged afterwards.
    pub(crate) fn publish_again(
        &mut self,
        row: &mut Row,
        descriptor: &Descriptor,
        now: SystemTime,
        because: impl Into<Because>,
    ) {
        if let Some(version) = row.current.as_ref().map(|current| current.with(descriptor)) {
            self.supersede(row, (descriptor, version), now, because.into());
        }
    }

    /// `because`: who ended what is staged, and why.
    fn supersede(
        &mut self,
        row: &mut Row,
        (descriptor, version): (&Descriptor, StoredVersion),
        now: SystemTime,
        because: Because,
    ) {
        if row.current.as_ref().is_none_or(|before| before.digest != version.digest) {
            row.aborted = None;
        }
        self.lines.push(Line::published(descriptor, version.why, version.by.clone()));
        self.staging_ended(row, descriptor, now, because);
        row.generation = descriptor.publication().generation;
        self.dropped_versions += supersede(row, Some(version), now, self.rules.versions);
    }

    /// The row and the current descriptor, if the current generation is the expected one.
    pub(crate) fn expected(
        &self,
        service: &Arc<Service>,
        change: &VersionChange,
    ) -> Result<(Row, Option<Descriptor>), VersionChangeError> {
        let row = self.row(&service.name)?;
        if service.is_withdrawn() || row.is_moving {
            return Err(VersionChangeError::Withdrawn(service.name.clone()));
        }
        let current = current(&row, service)?;
        let generation = current.as_ref().map(|current| current.publication().generation);
        if change.expected.is_some() && change.expected != generation {
            return Err(VersionChangeError::GenerationConflict { service: service.name.clone(), current: generation });
        }
        Ok((row, current))
    }

    /// A version again, above `last`.
    pub(crate) fn republished(
        &self,
        fields: &DescriptorFields,
        followed_ref: &str,
        last: Option<Generation>,
        now: SystemTime,
    ) -> Result<Descriptor, PublishError> {
        let now = self.rules.clocks.bounded(now, Instant::now());
        self.sign(decision::republished(fields, followed_ref, last, now, self.rules.generation_floor))
    }

    pub(crate) fn sign(&self, fields: DescriptorFields) -> Result<Descriptor, PublishError> {
        let descriptor = self.rules.signer.descriptor(fields);
        match descriptor.bytes().len() {
            length if length > MAX_DESCRIPTOR_BYTES => Err(PublishError::DescriptorTooLarge(length)),
            _ => Ok(descriptor),
        }
    }
}

/// The current descriptor of the row. `None`: there is none, or another repository has published since.
fn current(row: &Row, service: &Service) -> Result<Option<Descriptor>, PublishError> {
    let current = row.current.as_ref().map(parsed).transpose()?;
    let current = current.filter(|current| current.publication().generation >= row.generation_for_all());
    let Some(shown) = service.current() else { return Ok(current) };
    let shown = shown.publication();
    let is_elsewhere = shown.repository != service.repository;
    Ok(current.filter(|current| !(is_elsewhere && shown.generation >= current.publication().generation)))
}

/// What a candidate asks for.
pub(crate) fn request_of(candidate: &Candidate) -> PublishRequest {
    let service = &candidate.service;
    PublishRequest {
        service: service.name.clone(),
        repository: service.repository.clone(),
        revision: candidate.revision.clone(),
        version: candidate.version.clone(),
        parts: candidate.parts.clone(),
        followed_ref: service.followed.to_string(),
        source: service.source_url(),
        created: candidate.age.committed,
    }
}

/// Includes generations from another repository, or from before the row was damaged, while the service still shows
/// them.
pub(crate) fn last_generation(row: &Row, service: &Service) -> Option<Generation> {
    let shown = service.current().map(|current| current.publication().generation);
    row.last_generation().max(shown)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::decision::tests::content;
    use super::*;

    /// A publication with unique content.
    pub(crate) fn descriptor(service: &str, number: u64) -> Descriptor {
        let request = PublishRequest {
            service: service.parse().unwrap(),
            repository: "shop".parse().unwrap(),
            revision: format!("sha1:{number:040x}").parse().unwrap(),
            version: None,
            parts: Vec::new(),
            followed_ref: "main".to_owned(),
            source: None,
            created: None,
        };
        let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_795_000_000 + number);
        match decision::decide(None, &request, &content(&number.to_string(), "z"), None, at, 0) {
            Decision::Publish(fields) => Descriptor::new(fields),
            other => panic!("{other:?}"),
        }
    }
}
