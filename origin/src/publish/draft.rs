//! The next state of a repository while it is decided: several changes are applied to it, and it is written once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use weir_protocol::commit_id::CommitId;
use weir_protocol::descriptor::{Descriptor, DescriptorFields, Generation, MAX_DESCRIPTOR_BYTES};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::ServiceName;

use super::decision::{self, Content, Decision, Statement};
use super::error::{PublishError, VersionChangeError};
use super::history::{Line, Why};
use super::page::{self, Page};
use super::record::RepositoryRecord;
use super::request::{Outcome, VersionChange};
use super::retention::supersede;
use super::row::{Pin, Row, StoredVersion, from_unix, unix_milliseconds};
use crate::service::Service;
use crate::signing::Signer;
use crate::tarball::ContentKey;

/// What is decided by.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) generation_floor: Generation,
    /// Superseded versions of a service that are retained at the most.
    pub(super) versions: usize,
    pub(super) signer: Arc<Signer>,
}

/// The next state of a repository.
pub(super) struct Draft<'a> {
    rules: &'a Rules,
    pub(super) record: RepositoryRecord,
    /// The pages of the services that are changed, by their position in the record.
    pages: BTreeMap<usize, Page>,
    rows: BTreeMap<ServiceName, Row>,
    lines: Vec<Line>,
    /// Contents that turned out to have the digest that is published.
    pub(super) known_keys: Vec<(ServiceName, ContentKey)>,
    is_changed: bool,
    /// Versions that are retained no longer because there are too many.
    pub(super) dropped_versions: usize,
}

/// What is shown of a service once the draft is durable.
pub(super) struct VisibleChange {
    pub(super) service: Arc<Service>,
    pub(super) change: Change,
}

/// What became of a service.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// A new generation.
    Published(Descriptor),
    /// The representations or the ref, under the same generation.
    Revised(Descriptor),
    /// Nothing; but this is durable, and may be more than is shown.
    Current(Descriptor),
    /// It is held, since then.
    Pinned(SystemTime),
    Unpinned,
}

/// What was built, and where it was found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) service: Arc<Service>,
    pub(super) commit: CommitId,
    pub(super) key: ContentKey,
    pub(super) content: Content,
    pub(super) recipe: Option<ObjectDigest>,
}

impl<'a> Draft<'a> {
    /// `pages`: those of all services that are going to be changed.
    pub(super) fn new(rules: &'a Rules, record: RepositoryRecord, pages: BTreeMap<usize, Page>) -> Self {
        let (rows, lines, known_keys) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { rules, record, pages, rows, lines, known_keys, is_changed: false, dropped_versions: 0 }
    }

    /// Whether there is anything to write.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Has it written although nothing changed, as after damage.
    pub(super) fn set_changed(&mut self) {
        self.is_changed = true;
    }

    /// The rules, the record, the pages with all changes, the rows that changed, and the new lines of the history.
    pub(super) fn into_parts(mut self) -> (RepositoryRecord, BTreeMap<usize, Page>, Vec<Row>, Vec<Line>) {
        for row in self.rows.values() {
            let position = page::position(&self.record.pages, &row.service);
            self.pages.entry(position).or_default().set(row);
        }
        (self.record, self.pages, self.rows.into_values().collect(), self.lines)
    }

    /// What is stored of a service.
    pub(super) fn row(&self, service: &ServiceName) -> Result<Row, PublishError> {
        if let Some(row) = self.rows.get(service) {
            return Ok(row.clone());
        }
        let page = self.pages.get(&page::position(&self.record.pages, service));
        let row = page.map_or(Ok(None), |page| page.row(service));
        let row = row.map_err(|error| PublishError::Object(error.to_string()))?;
        Ok(row.unwrap_or_else(|| Row::new(service.clone())))
    }

    /// Replaces what is stored of a service.
    pub(super) fn put(&mut self, row: Row) {
        self.is_changed = true;
        self.rows.insert(row.service.clone(), row);
    }

    /// Publishes a content, or says that it is published. After an error nothing is changed.
    pub(super) fn publish(
        &mut self,
        found: Found,
        now: SystemTime,
    ) -> Result<(Outcome, Vec<VisibleChange>), PublishError> {
        let Found { service, commit, key, content, recipe } = found;
        if service.is_withdrawn() {
            return Ok((Outcome::Withdrawn, Vec::new()));
        }
        let mut row = self.row(&service.name)?;
        let current = current(&row, &service)?;
        if current.is_none() {
            // It was of what another repository has superseded.
            row.pin = None;
        }
        let show = |change| VisibleChange { service: service.clone(), change };
        if let (Some(pin), Some(current)) = (&row.pin, &current) {
            let changes = [Change::Pinned(from_unix(pin.since)), Change::Current(current.clone())];
            return Ok((Outcome::Pinned, changes.into_iter().map(show).collect()));
        }
        let statement = Statement {
            service: service.name.clone(),
            repository: service.repository.clone(),
            commit,
            followed_ref: service.revision.to_string(),
        };
        let last = last_generation(&row, &service);
        let floor = self.rules.generation_floor;
        match decision::decide(current.as_ref(), &statement, &content, last, now, floor) {
            Decision::Unchanged => {
                self.known_keys.push((service.name.clone(), key));
                Ok((Outcome::Unchanged, current.map(|current| show(Change::Current(current))).into_iter().collect()))
            }
            Decision::Revise(fields) => {
                let descriptor = self.sign(fields)?;
                if let Some(version) = &mut row.current {
                    *version = StoredVersion::new(&descriptor, key, recipe, version.why, version.by.clone());
                }
                self.put(row);
                Ok((Outcome::Revised, vec![show(Change::Revised(descriptor))]))
            }
            Decision::Publish(fields) => {
                let descriptor = self.sign(fields)?;
                let version = StoredVersion::new(&descriptor, key, recipe, Why::Followed, None);
                self.replace_current(row, &descriptor, version, now);
                Ok((Outcome::Published, vec![show(Change::Published(descriptor))]))
            }
        }
    }

    /// Publishes what is known: the content of a version with this key, of the service itself or of `source`. `None`: there
    /// is none any more.
    pub(super) fn publish_known(
        &mut self,
        service: &Arc<Service>,
        commit: &CommitId,
        key: &ContentKey,
        source: &ServiceName,
        now: SystemTime,
    ) -> Result<Option<(Outcome, Vec<VisibleChange>)>, PublishError> {
        let source = self.row(source)?;
        let Some(version) = source.versions().find(|version| version.key == *key) else { return Ok(None) };
        let descriptor = parsed(version)?;
        let (content, recipe) = (Content::of(&descriptor), version.recipe);
        let found = Found { service: service.clone(), commit: commit.clone(), key: *key, content, recipe };
        self.publish(found, now).map(Some)
    }

    /// Replaces the representations of a version that was built again. False: there is no such version any more.
    pub(super) fn replace_representations(
        &mut self,
        service: &Arc<Service>,
        content: &Content,
        recipe: ObjectDigest,
    ) -> Result<(bool, Vec<VisibleChange>), PublishError> {
        let mut row = self.row(&service.name)?;
        let is_current = row.current.as_ref().is_some_and(|current| current.digest == content.digest);
        let retained = row.retained.iter_mut().map(|retained| &mut retained.version);
        let mut versions = row.current.iter_mut().chain(retained);
        let Some(version) = versions.find(|version| version.digest == content.digest) else {
            return Ok((false, Vec::new()));
        };
        let before = parsed(version)?;
        let revised = decision::revised(&before, before.followed_ref(), &content.representations);
        if revised.is_none() && version.recipe == Some(recipe) {
            return Ok((true, Vec::new()));
        }
        let descriptor = revised.map_or(Ok(before.clone()), |fields| self.sign(fields))?;
        *version = version.with(&descriptor);
        version.recipe = Some(recipe);
        self.put(row);
        let is_shown = is_current && descriptor.version() > before.version();
        let shown = VisibleChange { service: service.clone(), change: Change::Revised(descriptor) };
        Ok((true, is_shown.then_some(shown).into_iter().collect()))
    }

    /// Pins a service to a digest, the current one (`None`) or a retained one, which is published again.
    pub(super) fn pin(
        &mut self,
        service: &Arc<Service>,
        digest: Option<&TarballDigest>,
        change: &VersionChange,
    ) -> Result<((), Vec<VisibleChange>), VersionChangeError> {
        let (mut row, current) = self.expected(service, change)?;
        let since = row.pin.as_ref().map_or(unix_milliseconds(change.now), |pin| pin.since);
        row.pin = Some(Pin { since, by: change.by.clone() });
        let mut shown = vec![Change::Pinned(from_unix(since))];
        let stays = current.filter(|current| digest.is_none_or(|digest| current.publication().digest == *digest));
        match (stays, digest) {
            (Some(current), _) => {
                self.lines.push(Line::pinned(&current, change.now, change.by.clone()));
                self.put(row);
                shown.push(Change::Current(current));
            }
            (None, None) => return Err(VersionChangeError::NothingPublished(service.name.clone())),
            (None, Some(digest)) => {
                let retained = row.version(digest).cloned();
                let not_retained = || VersionChangeError::NotRetained(service.name.clone(), *digest);
                let retained = retained.ok_or_else(not_retained)?;
                let version = parsed(&retained)?;
                let (last, followed_ref) = (last_generation(&row, service), service.revision.to_string());
                let floor = self.rules.generation_floor;
                let fields = decision::republished(&version, &followed_ref, last, change.now, floor);
                let descriptor = self.sign(fields)?;
                let by = change.by.clone();
                let StoredVersion { key, recipe, .. } = retained;
                let version = StoredVersion::new(&descriptor, key, recipe, Why::RolledBack, by.clone());
                self.replace_current(row, &descriptor, version, change.now);
                self.lines.push(Line::pinned(&descriptor, change.now, by));
                shown.push(Change::Published(descriptor));
            }
        }
        Ok(((), shown.into_iter().map(|change| VisibleChange { service: service.clone(), change }).collect()))
    }

    /// Lets a service follow its ref again. False: it was not pinned.
    pub(super) fn unpin(
        &mut self,
        service: &Arc<Service>,
        change: &VersionChange,
    ) -> Result<(bool, Vec<VisibleChange>), VersionChangeError> {
        let (mut row, current) = self.expected(service, change)?;
        let was_pinned = row.pin.take().is_some();
        if was_pinned {
            let line = current.map(|current| Line::unpinned(&current, change.now, change.by.clone()));
            self.lines.extend(line);
            self.put(row);
        }
        Ok((was_pinned, vec![VisibleChange { service: service.clone(), change: Change::Unpinned }]))
    }

    /// Takes a service out of what is current. Its last generation, if it had one that was current.
    pub(super) fn retire(
        &mut self,
        service: &ServiceName,
        now: SystemTime,
    ) -> Result<Option<Generation>, PublishError> {
        let mut row = self.row(service)?;
        let was_pinned = row.pin.take().is_some();
        let generation = row.current.is_some().then_some(row.generation);
        if generation.is_some() {
            self.dropped_versions += supersede(&mut row, None, now, self.rules.versions);
        }
        if generation.is_some() || was_pinned {
            self.put(row);
        }
        Ok(generation)
    }

    /// Drops retained versions. How many there were.
    pub(super) fn forget(&mut self, service: &ServiceName, digests: &[TarballDigest]) -> Result<usize, PublishError> {
        let mut row = self.row(service)?;
        let before = row.retained.len();
        row.retained.retain(|retained| !digests.contains(&retained.version.digest));
        let dropped = before - row.retained.len();
        if dropped > 0 {
            self.put(row);
        }
        Ok(dropped)
    }

    /// Forgets a service that is gone. Its generations go on growing, because the clock does.
    pub(super) fn drop_tombstone(&mut self, service: &ServiceName) -> Result<(), PublishError> {
        if self.row(service)?.is_tombstone() {
            self.put(Row::new(service.clone()));
        }
        Ok(())
    }

    /// Publishes a service again if it is below the floor of generations, pinned or not. False: it stays, because it is not
    /// below, or because its descriptor would be too large with the signatures of now.
    pub(super) fn raise_to_floor(&mut self, service: &ServiceName, now: SystemTime) -> Result<bool, PublishError> {
        let row = self.row(service)?;
        let (Some(current), floor) = (&row.current, self.rules.generation_floor) else { return Ok(false) };
        if row.generation >= floor {
            return Ok(false);
        }
        let before = parsed(current)?;
        let last = row.last_generation();
        let fields = decision::republished(&before, before.followed_ref(), last, now, floor);
        let Ok(descriptor) = self.sign(fields) else {
            tracing::warn!(%service, "its generation stays below generation_floor: the descriptor would be too large");
            return Ok(false);
        };
        let by = current.by.clone();
        let version = StoredVersion::new(&descriptor, current.key, current.recipe, Why::FloorRaised, by);
        let pin = row.pin.clone();
        self.replace_current(row, &descriptor, version, now);
        // Who pinned it, and when, is looked for at what is current.
        let pinned = pin.map(|pin| Line::pinned(&descriptor, from_unix(pin.since), pin.by));
        self.lines.extend(pinned);
        Ok(true)
    }

    /// Signs all versions of a service with the keys of now. How many; what would be too large stays as it is.
    pub(super) fn sign_again(&mut self, service: &ServiceName) -> Result<usize, PublishError> {
        let mut row = self.row(service)?;
        let mut signed = 0;
        let retained = row.retained.iter_mut().map(|retained| &mut retained.version);
        for version in row.current.iter_mut().chain(retained) {
            let again = version.descriptor().ok().map(|before| self.sign(decision::rewritten(&before)));
            match again {
                Some(Ok(descriptor)) => {
                    *version = version.with(&descriptor);
                    signed += 1;
                }
                Some(Err(error)) => tracing::warn!(%service, %error, "a version stays signed as it was"),
                None => tracing::warn!(%service, "a version that this program cannot read stays signed as it was"),
            }
        }
        if signed > 0 {
            self.put(row);
        }
        Ok(signed)
    }

    fn replace_current(&mut self, mut row: Row, descriptor: &Descriptor, version: StoredVersion, now: SystemTime) {
        self.lines.push(Line::published(descriptor, version.why, version.by.clone()));
        row.generation = descriptor.publication().generation;
        self.dropped_versions += supersede(&mut row, Some(version), now, self.rules.versions);
        self.put(row);
    }

    /// The row and the current descriptor, if the service is what the change expects.
    fn expected(
        &self,
        service: &Arc<Service>,
        change: &VersionChange,
    ) -> Result<(Row, Option<Descriptor>), VersionChangeError> {
        if service.is_withdrawn() {
            return Err(VersionChangeError::Withdrawn(service.name.clone()));
        }
        let row = self.row(&service.name)?;
        let current = current(&row, service)?;
        let generation = current.as_ref().map(|current| current.publication().generation);
        if change.expected.is_some() && change.expected != generation {
            return Err(VersionChangeError::GenerationConflict { service: service.name.clone(), current: generation });
        }
        Ok((row, current))
    }

    fn sign(&self, fields: DescriptorFields) -> Result<Descriptor, PublishError> {
        let descriptor = self.rules.signer.descriptor(fields);
        match descriptor.bytes().len() {
            length if length > MAX_DESCRIPTOR_BYTES => Err(PublishError::DescriptorTooLarge(length)),
            _ => Ok(descriptor),
        }
    }
}

/// What the row has as current, unless the service was in another repository meanwhile and is shown as it was there.
fn current(row: &Row, service: &Service) -> Result<Option<Descriptor>, PublishError> {
    let current = row.current.as_ref().map(parsed).transpose()?;
    let Some(shown) = service.current() else { return Ok(current) };
    let shown = shown.publication();
    let is_elsewhere = shown.repository != service.repository;
    Ok(current.filter(|current| !(is_elsewhere && shown.generation >= current.publication().generation)))
}

pub(super) fn parsed(version: &StoredVersion) -> Result<Descriptor, PublishError> {
    version.descriptor().map_err(|error| PublishError::Object(error.to_string()))
}

/// Also what it was in another repository, or before its row was damaged, as long as that is shown.
fn last_generation(row: &Row, service: &Service) -> Option<Generation> {
    let shown = service.current().map(|current| current.publication().generation);
    row.last_generation().max(shown)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::decision::tests::content;
    use super::*;

    /// A publication of a content of its own.
    pub(in super::super) fn descriptor(service: &str, number: u64) -> Descriptor {
        let statement = Statement {
            service: service.parse().unwrap(),
            repository: "shop".parse().unwrap(),
            commit: format!("{number:040x}").parse().unwrap(),
            followed_ref: "main".to_owned(),
        };
        let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_795_000_000 + number);
        match decision::decide(None, &statement, &content(&number.to_string(), "z"), None, at, 0) {
            Decision::Publish(fields) => Descriptor::new(fields),
            other => panic!("{other:?}"),
        }
    }
}
