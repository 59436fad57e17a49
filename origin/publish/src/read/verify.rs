//! `weir-origin verify`: reads every referenced object of a stopped origin, and reports damage and its consequences.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use futures_util::{StreamExt, stream};
use serde::Serialize;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;
use weir_store::{Area, ObjectError, Objects, RecordKey, Records};

use crate::error::PublishError;
use crate::stored::known::KnownService;
use crate::stored::load::{Loaded, load, without_record};
use crate::stored::mark::{Mark, MarkedVersion};
use crate::stored::page::Page;
use crate::stored::record::RepositoryRecord;

const CONCURRENT_READS: usize = 16;

/// The result of a verification.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// All problems that were found.
    pub findings: Vec<Finding>,
    /// Repositories with a record, without deleted ones.
    pub repositories: u64,
    /// Versions, current and retained.
    pub versions: u64,
    /// Objects that were read.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// One problem.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// A record's key, or `<repository>/<area>/<digest>`.
    pub object: String,
    /// What is wrong with the object.
    pub problem: String,
    /// The effect, and on which service.
    pub consequence: String,
    /// How bad it is.
    pub severity: Severity,
    /// Whether the object was deleted, so that it is built again.
    pub deleted: bool,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// An origin rebuilds the object, or works without it.
    Rebuildable,
    /// The data is lost, or an operator has to confirm the rest.
    Lost,
    /// The object could not be read, and may be undamaged.
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
    /// The exit code. 0: no damage. 1: damage that an origin repairs. 4: data is lost, needs an operator, or could
    /// not be read.
    pub fn exit_code(&self) -> u8 {
        match self.findings.iter().map(|finding| finding.severity).max() {
            None => 0,
            Some(Severity::Rebuildable) => 1,
            Some(Severity::Lost | Severity::Unread) => 4,
        }
    }
}

/// Verifies the store of a stopped origin, past its cache. `of_file`: the repositories of the configuration file. With
/// `delete_corrupt`, damaged frames, manifests and recipes are deleted, and nothing else.
///
/// # Errors
/// The store cannot be listed.
pub async fn verify(
    objects: &Objects,
    records: Records,
    of_file: BTreeSet<RepositoryName>,
    delete_corrupt: bool,
) -> Result<Report, PublishError> {
    let report = Report::default();
    Verifier { objects: objects.past_cache(), records, of_file, delete_corrupt, report }.run().await
}

struct Verifier {
    objects: Objects,
    records: Records,
    /// The repositories of the configuration file.
    of_file: BTreeSet<RepositoryName>,
    delete_corrupt: bool,
    report: Report,
}

/// Required objects: the consequence of losing each, and its severity.
type Needed = HashMap<(Area, ObjectDigest), (String, Severity)>;

impl Verifier {
    async fn run(mut self) -> Result<Report, PublishError> {
        let keys = self.records.list("repositories/").await?;
        for repository in without_record(&self.objects, &keys).await? {
            let problem = "the record is missing, although the repository has state pages or recipes";
            let consequence = format!(
                "repository `{repository}` starts empty, without pins, history and operators' definitions: put the \
                 record back, unless its first publication was interrupted"
            );
            let key = RecordKey::repository(&repository).to_string();
            self.found(key, problem.to_owned(), consequence, Severity::Lost);
        }
        for key in keys {
            let Ok(repository) = key.name().parse::<RepositoryName>() else { continue };
            self.repository(key.to_string(), &repository).await;
        }
        Ok(self.report)
    }

    async fn repository(&mut self, key: String, repository: &RepositoryName) {
        let Loaded { known, problems, replaced, .. } = load(&self.objects, &self.records, repository, &[]).await;
        // The record of a deleted repository remains, for the generations of its services.
        let is_in_use = |service: &KnownService| service.current.is_some() || service.defined_at.is_some();
        let is_defined = known.record.definition.is_some() || self.of_file.contains(repository);
        if is_defined || known.suspension.is_some() || known.services.values().any(|service| is_in_use(service)) {
            self.report.repositories += 1;
        }
        for problem in problems.damage {
            let consequence =
                format!("publishing is suspended for repository `{repository}` until an operator confirms its state");
            self.found(key.clone(), problem, consequence, Severity::Lost);
        }
        for problem in problems.failures {
            self.found(key.clone(), problem, "it may be undamaged: try again".to_owned(), Severity::Unread);
        }
        let mut mark = Mark::of(&self.objects, repository, &known.record).await;
        // The origin serves these rows while the page is damaged.
        for row in replaced.values().flat_map(Page::rows).flatten() {
            mark.add(&self.objects, repository, &row).await;
        }
        for problem in mark.unreadable_versions {
            self.found(key.clone(), problem, "it is not served".to_owned(), Severity::Lost);
        }
        if let Some(problem) = mark.failure {
            let consequence = "the objects that it references were not checked: try again".to_owned();
            self.found(key.clone(), problem, consequence, Severity::Unread);
        }
        for problem in mark.unreadable_manifests {
            let consequence = "its frames were not checked".to_owned();
            self.found(key.clone(), problem, consequence, Severity::Rebuildable);
        }
        self.report.versions += mark.versions.len() as u64;
        self.read(repository, needed(&known.record, &mark.versions)).await;
    }

    async fn read(&mut self, repository: &RepositoryName, needed: Needed) {
        let objects = self.objects.clone();
        let mut reads = stream::iter(needed.into_iter().map(|((area, digest), meaning)| {
            let objects = &objects;
            async move { (area, digest, meaning, objects.get(repository, area, &digest).await) }
        }))
        .buffer_unordered(CONCURRENT_READS);
        while let Some((area, digest, (consequence, severity), read)) = reads.next().await {
            let (problem, is_corrupt) = match read {
                Ok(bytes) => {
                    self.report.objects += 1;
                    self.report.bytes += bytes.len() as u64;
                    continue;
                }
                Err(ObjectError::Missing(_)) => ("it is missing".to_owned(), false),
                Err(ObjectError::Corrupt(_)) => ("its bytes do not have its digest".to_owned(), true),
                Err(error @ ObjectError::Unavailable(_)) => {
                    let consequence = "it may be undamaged: try again".to_owned();
                    self.found("an object".to_owned(), error.to_string(), consequence, Severity::Unread);
                    continue;
                }
            };
            let is_deletable = self.delete_corrupt && is_corrupt && severity == Severity::Rebuildable;
            let deleted = is_deletable && objects.delete(repository, area, &digest).await.is_ok();
            let object = format!("{repository}/{}/{digest}", area.as_str());
            self.report.findings.push(Finding { object, problem, consequence, severity, deleted });
        }
    }

    fn found(&mut self, object: String, problem: String, consequence: String, severity: Severity) {
        self.report.findings.push(Finding { object, problem, consequence, severity, deleted: false });
    }
}

/// The objects that a record and its versions reference, without the pages, which were read already.
fn needed(record: &RepositoryRecord, versions: &[MarkedVersion]) -> Needed {
    let segments = record.history.iter().map(|segment| {
        let consequence = format!("{} entries of the history are lost; publishing continues", segment.entries);
        ((Area::Private, segment.digest), (consequence, Severity::Lost))
    });
    let mut needed: Needed = segments.collect();
    if let Some(list) = record.mirror {
        let consequence = "the repository is cloned if its mirror is lost, until the next bundle".to_owned();
        needed.insert((Area::Private, list), (consequence, Severity::Rebuildable));
    }
    for MarkedVersion { service, digest, superseded_at, is_staged, recipe, objects } in versions {
        let word = match superseded_at {
            _ if *is_staged => "staged",
            None => "current",
            Some(_) => "retained",
        };
        let name = format!("the {word} version {digest} of service `{service}`");
        for (object, _) in objects {
            needed.entry((Area::Public, *object)).or_insert_with(|| {
                let until = "until a request makes the origin rebuild it from its commit";
                (format!("{name} cannot be served in full {until}"), Severity::Rebuildable)
            });
        }
        if let Some(recipe) = recipe {
            needed.entry((Area::Private, *recipe)).or_insert_with(|| {
                (format!("the build after {name} reuses no frames and is slower"), Severity::Rebuildable)
            });
        }
    }
    needed
}
