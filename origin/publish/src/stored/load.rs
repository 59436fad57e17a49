//! Reads a repository's record and pages. A damaged page is replaced by its previous version, and the repository is
//! suspended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use weir_model::stored_mirror::MirrorManifest;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::Manifest;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_store::{Area, ObjectError, Objects, RecordError, RecordKey, Records};

use super::known::{Known, SuspendedUntil, Suspension};
use super::page::{self, Page, PageRef};
use super::record::RepositoryRecord;
use super::row::Definition;
use crate::error::PublishError;

const CONCURRENT_PAGES: usize = 8;

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) known: Known,
    /// The services of the pages that were read, with the documents of operators; those that are gone have none.
    pub(crate) read: BTreeMap<ServiceName, Option<Definition>>,
    /// The services of each page that was not read, because it was read before. By the page's position.
    kept: Vec<Option<Range>>,
    /// Pages that stand in for damaged ones, by their position.
    pub(crate) replaced: BTreeMap<usize, Page>,
    pub(crate) problems: Problems,
}

/// The services from the first name up to the second one.
type Range = (Option<ServiceName>, Option<ServiceName>);

impl Loaded {
    /// The documents of operators.
    pub(crate) fn definitions(&mut self) -> BTreeMap<ServiceName, Definition> {
        let read = std::mem::take(&mut self.read).into_iter();
        read.filter_map(|(service, definition)| Some((service, definition?))).collect()
    }

    /// Takes what was not read from the state before, and notes which services are gone.
    pub(crate) fn complete(&mut self, before: &Known) {
        for (service, known) in &before.services {
            let kept = self.kept.get(page::position(&self.known.record.pages, service)).and_then(Option::as_ref);
            let is_kept = kept.is_some_and(|(from, to)| {
                from.as_ref().is_none_or(|from| service >= from) && to.as_ref().is_none_or(|to| service < to)
            });
            if is_kept {
                self.known.services.insert(service.clone(), known.clone());
                continue;
            }
            self.read.entry(service.clone()).or_default();
            if let Some(now) = self.known.services.get_mut(service) {
                now.inherit(known);
            }
        }
    }
}

/// Reads a repository, but none of the `known` pages: [`Loaded::complete`] must follow. Problems end up in its
/// suspension.
pub(crate) async fn load(
    objects: &Objects,
    records: &Records,
    repository: &RepositoryName,
    known_pages: &[PageRef],
) -> Loaded {
    let mut problems = Problems::default();
    let mut known = Known::new(RepositoryRecord::new(repository.clone()), None);
    match records.get(&RecordKey::repository(repository)).await {
        Ok(None) => {}
        Ok(Some(record)) => {
            match RepositoryRecord::parse(repository, &record.bytes) {
                Ok(parsed) => known = Known::new(parsed, Some(record.version)),
                Err(error) => problems.damage(error.to_string()),
            }
            if let Some(reason) = record.recovered {
                problems.damage(format!("{reason}; the previous one is used"));
            }
        }
        Err(error @ RecordError::Damaged { .. }) => problems.damage(format!(
            "{error}. What was published is not known. Restore the files of the record from a backup, or remove them to begin \
             from nothing, and restart"
        )),
        Err(error) => problems.failures.push(error.to_string()),
    }
    let (mut read, mut replaced) = (BTreeMap::new(), BTreeMap::new());
    let refs = known.record.pages.clone();
    let kept: Vec<Option<Range>> = (0..refs.len()).map(|position| kept(&refs, position, known_pages)).collect();
    let unknown = (0..refs.len()).filter(|position| kept[*position].is_none());
    let refs_too = &refs;
    let reads = unknown
        .map(|position| async move { (position, read_or_previous(objects, repository, refs_too, position).await) });
    let mut pages = stream::iter(reads).buffered(CONCURRENT_PAGES);
    let now = Instant::now();
    while let Some((position, page)) = pages.next().await {
        let page = match page {
            Read::Page(page) => page,
            Read::Previous(page, reason) => {
                problems.damage(reason);
                replaced.insert(position, page.clone());
                page
            }
            Read::Failed(error) => {
                problems.failures.push(error);
                continue;
            }
        };
        for row in page.rows() {
            match row {
                Ok(row) => {
                    known.take(&row, now);
                    read.insert(row.service, row.definition);
                }
                Err(error) => problems.damage(format!("page {}: {error}", refs[position].digest)),
            }
        }
    }
    drop(pages);
    known.suspension = problems.suspension();
    Loaded { known, read, kept, replaced, problems }
}

/// The services of a page that is among the known ones.
fn kept(pages: &[PageRef], position: usize, known: &[PageRef]) -> Option<Range> {
    let before = known.iter().position(|page| page.digest == pages[position].digest)?;
    let ((from, to), (known_from, known_to)) = (range(pages, position), range(known, before));
    let to = to.into_iter().chain(known_to).min();
    Some((from.max(known_from).cloned(), to.cloned()))
}

/// The repositories that have private objects but no record: it was lost, or their first publication was interrupted.
///
/// # Errors
/// The objects cannot be listed.
pub(crate) async fn without_record(
    objects: &Objects,
    records: &[RecordKey],
) -> Result<BTreeSet<RepositoryName>, ObjectError> {
    let mut found: BTreeSet<_> = objects.repositories().await?.into_iter().collect();
    for key in records {
        found.remove(key.name());
    }
    let mut without = BTreeSet::new();
    for repository in found {
        // Public frames alone come from an unfinished build.
        if !objects.list(&repository, Area::Private).await?.is_empty() {
            without.insert(repository);
        }
    }
    Ok(without)
}

pub(crate) async fn read_pages(
    objects: &Objects,
    repository: &RepositoryName,
    pages: &[PageRef],
    positions: impl IntoIterator<Item = usize>,
) -> Result<BTreeMap<usize, Page>, ReadError> {
    let read = positions
        .into_iter()
        .filter(|position| *position < pages.len())
        .map(|position| async move { Ok((position, read_page(objects, repository, &pages[position].digest).await?)) });
    stream::iter(read).buffer_unordered(CONCURRENT_PAGES).try_collect().await
}

#[derive(Debug, Clone)]
pub(crate) enum ReadError {
    /// The object is missing or corrupt.
    Damaged(String),
    /// The store did not answer.
    Failed(String),
}

impl From<ObjectError> for ReadError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Missing(_) | ObjectError::Corrupt(_) => Self::Damaged(error.to_string()),
            ObjectError::Unavailable(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<ReadError> for PublishError {
    fn from((ReadError::Damaged(error) | ReadError::Failed(error)): ReadError) -> Self {
        Self::Object(error)
    }
}

pub(crate) async fn read_page(
    objects: &Objects,
    repository: &RepositoryName,
    digest: &ObjectDigest,
) -> Result<Page, ReadError> {
    let bytes = objects.get(repository, Area::Private, digest).await?;
    Page::parse(&bytes).map_err(|error| ReadError::Damaged(format!("object {repository}/private/{digest}: {error}")))
}

pub(crate) async fn read_manifest(
    objects: &Objects,
    repository: &RepositoryName,
    digest: &ObjectDigest,
) -> Result<Manifest, ReadError> {
    let bytes = objects.get(repository, Area::Public, digest).await?;
    Manifest::parse(&bytes).map_err(|error| ReadError::Damaged(format!("manifest {digest}: {error}")))
}

/// Reads the list of a stored mirror's bundles.
pub(crate) async fn read_mirror(
    objects: &Objects,
    repository: &RepositoryName,
    digest: &ObjectDigest,
) -> Result<MirrorManifest, ReadError> {
    parse_list(&objects.get(repository, Area::Private, digest).await?)
}

/// Parses a list that is stored with a mirror.
pub(crate) fn parse_list<T: serde::de::DeserializeOwned>(bytes: &Bytes) -> Result<T, ReadError> {
    serde_json::from_slice(bytes).map_err(|error| ReadError::Damaged(format!("a list of bundles: {error}")))
}

enum Read {
    Page(Page),
    /// The rows of the previous version, and the reason.
    Previous(Page, String),
    Failed(String),
}

async fn read_or_previous(objects: &Objects, repository: &RepositoryName, pages: &[PageRef], position: usize) -> Read {
    let reason = match read_page(objects, repository, &pages[position].digest).await {
        Ok(page) => return Read::Page(page),
        Err(ReadError::Failed(error)) => return Read::Failed(error),
        Err(ReadError::Damaged(reason)) => reason,
    };
    let (page, lost) = match previous_rows(objects, repository, pages, position).await {
        Ok(previous) => previous,
        Err(error) => return Read::Failed(error),
    };
    let (from, to) = range(pages, position);
    let services = match (from, to) {
        (_, Some(to)) => format!("services before `{to}`"),
        (Some(from), None) => format!("services from `{from}` on"),
        (None, None) => "all services".to_owned(),
    };
    let used = if lost { "its previous version cannot be read in full" } else { "its previous version is used" };
    Read::Previous(page, format!("the state page of {services} is damaged ({reason}); {used}"))
}

/// The rows of a page's previous version, and whether some of them are lost.
///
/// # Errors
/// The store did not answer.
async fn previous_rows(
    objects: &Objects,
    repository: &RepositoryName,
    pages: &[PageRef],
    position: usize,
) -> Result<(Page, bool), String> {
    let (from, to) = range(pages, position);
    let mut lost = pages[position].previous.is_empty();
    let mut all: Vec<Page> = Vec::new();
    for previous in &pages[position].previous {
        match read_page(objects, repository, previous).await {
            Ok(mut page) => {
                page.restrict(from, to);
                all.push(page);
            }
            Err(ReadError::Failed(error)) => return Err(error),
            Err(ReadError::Damaged(_)) => lost = true,
        }
    }
    all.retain(|page| page.first().is_some());
    all.sort_by(|one, other| one.first().cmp(&other.first()));
    let mut page = Page::default();
    all.into_iter().for_each(|next| page.append(next));
    Ok((page, lost))
}

/// The first service of a page, and the first of the next page.
fn range(pages: &[PageRef], position: usize) -> (Option<&ServiceName>, Option<&ServiceName>) {
    let from = (position > 0).then(|| &pages[position].first);
    (from, pages.get(position + 1).map(|next| &next.first))
}

#[derive(Debug, Default)]
pub(crate) struct Problems {
    pub(crate) damage: Vec<String>,
    /// The store did not answer, so these may be undamaged.
    pub(crate) failures: Vec<String>,
}

impl Problems {
    fn damage(&mut self, reason: String) {
        self.damage.push(reason);
    }

    fn suspension(&self) -> Option<Suspension> {
        // An operator is not asked to confirm a state that may prove to be undamaged.
        let (until, reasons) = match self.failures.is_empty() {
            true => (SuspendedUntil::Confirmed, &self.damage),
            false => (SuspendedUntil::Read, &self.failures),
        };
        let first = reasons.first()?;
        let reason = match reasons.len() {
            1 => first.clone(),
            count => format!("{first} (and {} more)", count - 1),
        };
        Some(Suspension { since: SystemTime::now(), reason, until })
    }
}
