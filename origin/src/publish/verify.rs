//! `weir-origin verify`: reads everything that records refer to, and says what is damaged and what that means.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use anyhow::Context;
use futures_util::{StreamExt, stream};
use prometheus::Registry;
use serde::Serialize;
use weir_shared::descriptor::{Descriptor, Representation};
use weir_shared::digest::ObjectDigest;
use weir_shared::manifest::Manifest;
use weir_shared::name::RepositoryName;

use super::draft::parsed;
use super::load::{ReadError, previous_rows, read_page, without_record};
use super::page::Page;
use super::record::RepositoryRecord;
use super::row::{Row, StoredVersion};
use crate::bounds::Bounds;
use crate::config::Config;
use crate::data_dir::DataDir;
use crate::store::{Area, ObjectError, Objects, RecordError, RecordKey, Records, StoreMetrics};
use crate::tarball::Recipe;

/// Objects that are read at a time.
const CONCURRENT_READS: usize = 16;

/// What was found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Everything that is not as it should be.
    pub findings: Vec<Finding>,
    /// Repositories with a record.
    pub repositories: u64,
    /// Versions, current and retained.
    pub versions: u64,
    /// Objects that were read, and their bytes.
    pub objects: u64,
    /// See `objects`.
    pub bytes: u64,
}

/// Something that is not as it should be.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// What it is about: a record's key, or `<repository>/<area>/<digest>`.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// What that means, and for which service.
    pub consequence: String,
    /// How bad it is.
    pub severity: Severity,
    /// It was deleted, so that it is built again.
    pub deleted: bool,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// An origin builds it again, or does without it.
    Rebuildable,
    /// It is gone, or an operator has to confirm what is left.
    Lost,
    /// It could not be read, and may be good.
    Unread,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rebuildable => "rebuildable",
            Self::Lost => "lost",
            Self::Unread => "unread",
        })
    }
}

impl Report {
    /// 0: no damage; 1: damage that an origin repairs by building again; 4: something is lost, needs an operator, or could
    /// not be read.
    pub fn exit_code(&self) -> u8 {
        match self.findings.iter().map(|finding| finding.severity).max() {
            None => 0,
            Some(Severity::Rebuildable) => 1,
            Some(Severity::Lost | Severity::Unread) => 4,
        }
    }
}

/// Verifies what a stopped origin stores. With `delete_corrupt`, damaged frames, manifests and recipes are deleted; nothing
/// else ever is.
///
/// # Errors
/// No origin has stored anything in the data directory, one runs on it, or the store cannot be opened or listed.
pub async fn verify(config: &Config, delete_corrupt: bool) -> anyhow::Result<Report> {
    // Everything below would create what is missing, and find nothing wrong with it.
    let records = config.data_dir.join("records");
    anyhow::ensure!(records.try_exists()?, "{} does not exist: no origin has stored anything there", records.display());
    let (data_dir, _released) = DataDir::open(&config.data_dir)?;
    let metrics = StoreMetrics::register(&Registry::new())?;
    let objects = Objects::open(&config.store, data_dir.root(), metrics.clone(), &Bounds::default()).await?;
    let records = Records::open_local(data_dir.root(), metrics).context("the folder of records cannot be used")?;
    Verifier::new(&objects, records, delete_corrupt).run().await
}

pub(super) struct Verifier {
    objects: Objects,
    records: Records,
    delete_corrupt: bool,
    report: Report,
}

/// An object that versions refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Frame,
    Manifest,
    Recipe,
}

/// What an object is needed for: the first version that was found.
type Needed = BTreeMap<ObjectDigest, (Kind, String)>;

impl Verifier {
    pub(super) fn new(objects: &Objects, records: Records, delete_corrupt: bool) -> Self {
        Self { objects: objects.past_cache(), records, delete_corrupt, report: Report::default() }
    }

    pub(super) async fn run(mut self) -> anyhow::Result<Report> {
        let keys = self.records.list("repositories/").await?;
        for repository in without_record(&self.objects, &keys).await? {
            let problem = "there is none, although there are state pages or recipes of the repository";
            let consequence = format!(
                "repository `{repository}` begins from nothing, without pins, histories and operators' definitions: put the \
                 record back, unless its first publication was interrupted"
            );
            let key = RecordKey::repository(&repository).to_string();
            self.found(key, problem.to_owned(), consequence, Severity::Lost);
        }
        for key in keys {
            let Ok(repository) = key.name().parse::<RepositoryName>() else { continue };
            self.report.repositories += 1;
            if let Some(record) = self.record(&key, &repository).await {
                self.state(&repository, &record).await;
            }
        }
        Ok(self.report)
    }

    async fn record(&mut self, key: &RecordKey, repository: &RepositoryName) -> Option<RepositoryRecord> {
        let confirm = "nothing new is published of the repository until an operator confirms its state";
        let record = match self.records.get(key).await {
            Ok(record) => record?,
            Err(error @ RecordError::Damaged { .. }) => {
                let consequence = format!("what was published of repository `{repository}` is not known; {confirm}");
                self.found(key.to_string(), error.to_string(), consequence, Severity::Lost);
                return None;
            }
            Err(error) => {
                self.found(key.to_string(), error.to_string(), "it may be good: try again".into(), Severity::Unread);
                return None;
            }
        };
        if let Some(reason) = record.recovered {
            let consequence = format!("the record before it is used, without the last publication; {confirm}");
            self.found(key.to_string(), reason, consequence, Severity::Lost);
        }
        match RepositoryRecord::parse(repository, &record.bytes) {
            Ok(record) => Some(record),
            Err(error) => {
                self.found(key.to_string(), error.to_string(), confirm.to_owned(), Severity::Lost);
                None
            }
        }
    }

    async fn state(&mut self, repository: &RepositoryName, record: &RepositoryRecord) {
        let mut needed = Needed::new();
        for position in 0..record.pages.len() {
            let page = self.page(repository, record, position).await;
            for row in page.rows() {
                match row {
                    Ok(row) => self.versions(repository, &row, &mut needed).await,
                    Err(error) => {
                        let object = format!("{repository}/private/{}", record.pages[position].digest);
                        let consequence = "its service is not served; a newer version may have written it".to_owned();
                        self.found(object, error.to_string(), consequence, Severity::Lost);
                    }
                }
            }
        }
        for segment in &record.history {
            let read = self.objects.get(repository, Area::Private, &segment.digest).await;
            let consequence = format!("{} entries of the history are lost; publishing goes on", segment.entries);
            self.counted(read, &consequence, Severity::Lost);
        }
        self.needed(repository, needed).await;
    }

    async fn page(&mut self, repository: &RepositoryName, record: &RepositoryRecord, position: usize) -> Page {
        let page = &record.pages[position];
        let problem = match read_page(&self.objects, repository, &page.digest).await {
            Ok(read) => {
                self.report.objects += 1;
                self.report.bytes += page.size;
                return read;
            }
            Err(ReadError::Damaged(problem)) => problem,
            Err(ReadError::Failed(problem)) => {
                let object = format!("{repository}/private/{}", page.digest);
                self.found(object, problem, "its services were not looked at: try again".into(), Severity::Unread);
                return Page::default();
            }
        };
        let (previous, lost) = match previous_rows(&self.objects, repository, &record.pages, position).await {
            Ok(previous) => previous,
            Err(_) => (Page::default(), true),
        };
        let what = if lost { "is not known in full" } else { "is that of the version before" };
        let consequence = format!(
            "the state of the services from `{}` on {what}; nothing new is published of repository `{repository}` until an \
             operator confirms",
            page.first
        );
        self.found(format!("{repository}/private/{}", page.digest), problem, consequence, Severity::Lost);
        previous
    }

    async fn versions(&mut self, repository: &RepositoryName, row: &Row, needed: &mut Needed) {
        for version in row.versions() {
            self.report.versions += 1;
            let is_current = row.current.as_ref().is_some_and(|current| current.digest == version.digest);
            let word = if is_current { "current" } else { "retained" };
            let name = format!("the {word} version {} of service `{}`", version.digest, row.service);
            match parsed(version) {
                Ok(descriptor) => self.version(repository, &name, version, &descriptor, needed).await,
                Err(error) => {
                    let consequence = format!("{name} is not served");
                    self.found(format!("service {}", row.service), error.to_string(), consequence, Severity::Lost);
                }
            }
        }
    }

    async fn version(
        &mut self,
        repository: &RepositoryName,
        name: &str,
        version: &StoredVersion,
        descriptor: &Descriptor,
        needed: &mut Needed,
    ) {
        let mut need = |digest, kind| {
            needed.entry(digest).or_insert_with(|| (kind, name.to_owned()));
        };
        for Representation { digest, frames, size, .. } in descriptor.representations() {
            if *frames == 1 {
                need(*digest, Kind::Frame);
                continue;
            }
            need(*digest, Kind::Manifest);
            // One that is damaged is found with the others.
            let Ok(bytes) = self.objects.get(repository, Area::Public, digest).await else { continue };
            match Manifest::parse(&bytes) {
                Ok(manifest) if manifest.size() == *size => {
                    manifest.frames().iter().for_each(|frame| need(frame.digest, Kind::Frame));
                }
                other => {
                    let problem =
                        other.err().map_or("its sizes are not those of the body".to_owned(), |error| error.to_string());
                    let consequence = format!("{name} cannot be served");
                    self.report.findings.push(Finding {
                        object: format!("{repository}/public/{digest}"),
                        problem,
                        consequence,
                        severity: Severity::Lost,
                        deleted: false,
                    });
                }
            }
        }
        if let Some(recipe) = version.recipe {
            need(recipe, Kind::Recipe);
        }
    }

    async fn needed(&mut self, repository: &RepositoryName, needed: Needed) {
        let objects = self.objects.clone();
        let mut reads = stream::iter(needed.into_iter().map(|(digest, (kind, name))| {
            let (objects, repository) = (objects.clone(), repository.clone());
            async move {
                let read = objects.get(&repository, kind.area(), &digest).await;
                (digest, kind, name, read)
            }
        }))
        .buffer_unordered(CONCURRENT_READS);
        let mut corrupt = HashSet::new();
        while let Some((digest, kind, name, read)) = reads.next().await {
            if matches!(read, Err(ObjectError::Corrupt(_))) {
                corrupt.insert((digest, kind.area()));
            }
            let consequence = match kind {
                Kind::Frame | Kind::Manifest => {
                    format!(
                        "{name} cannot be served in full until it is built again from its commit, when it is asked for"
                    )
                }
                Kind::Recipe => format!("the build after {name} takes nothing from it, and is slower"),
            };
            if kind == Kind::Recipe
                && let Ok(bytes) = &read
                && let Err(error) = Recipe::parse(bytes)
            {
                let object = format!("{repository}/private/{digest}");
                self.found(object, error.to_string(), consequence.clone(), Severity::Rebuildable);
            }
            self.counted(read, &consequence, Severity::Rebuildable);
        }
        if self.delete_corrupt {
            for (digest, area) in corrupt {
                let object = format!("{repository}/{}/{digest}", area.as_str());
                let deleted = self.objects.delete(repository, area, &digest).await.is_ok();
                let findings = self.report.findings.iter_mut().filter(|finding| finding.object == object);
                findings.for_each(|finding| finding.deleted = deleted);
            }
        }
    }

    fn counted(&mut self, read: Result<bytes::Bytes, ObjectError>, consequence: &str, severity: Severity) {
        match read {
            Ok(bytes) => {
                self.report.objects += 1;
                self.report.bytes += bytes.len() as u64;
            }
            Err(ObjectError::Missing(object)) => {
                self.found(object.to_string(), "it is missing".into(), consequence.to_owned(), severity);
            }
            Err(ObjectError::Corrupt(object)) => {
                let problem = "its bytes do not have its digest".to_owned();
                self.found(object.to_string(), problem, consequence.to_owned(), severity);
            }
            Err(error @ ObjectError::Unavailable(_)) => {
                let consequence = "it may be good: try again".to_owned();
                self.found("an object".to_owned(), error.to_string(), consequence, Severity::Unread);
            }
        }
    }

    fn found(&mut self, object: String, problem: String, consequence: String, severity: Severity) {
        self.report.findings.push(Finding { object, problem, consequence, severity, deleted: false });
    }
}

impl Kind {
    fn area(self) -> Area {
        match self {
            Self::Frame | Self::Manifest => Area::Public,
            Self::Recipe => Area::Private,
        }
    }
}
