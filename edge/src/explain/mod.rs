//! What is held of a service, how fresh it is, from where, and why: gathered without changing any of it.

mod words;

use std::time::SystemTime;

use serde::Serialize;
use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;
use weir_shared::name::ServiceName;

use crate::blob_cache::HeldBlob;
use crate::clock::Moment;
use crate::service_table::freshness::Verdict;
use crate::service_table::{Entry, StoreError};
use crate::status::Status;
use crate::version::Version;

/// The document of `/v1/explain`.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    service: String,
    /// All of it for a person, a sentence each.
    words: Vec<String>,
    /// Why no new version can be taken: the disk does not take the table.
    table_failure: Option<String>,
    /// The version that was asked about, else the current one.
    version: Option<HeldVersion>,
    /// Other versions that are held in memory, by digest.
    past_versions: Vec<String>,
    /// What is known of the service as such; `None` when nothing is.
    table: Option<TableEntry>,
    /// What went wrong with the last question, while that is taken as given.
    last_failure: Option<String>,
    /// For how long it is, from the question on.
    last_failure_holds_seconds: Option<u64>,
    /// An origin is being asked about it now.
    being_asked: bool,
}

#[derive(Debug, Serialize)]
struct HeldVersion {
    digest: String,
    is_current: bool,
    generation: u64,
    revision: u64,
    commit: String,
    repository: String,
    size: u64,
    published_seconds_ago: u64,
    representations: Vec<Form>,
}

#[derive(Debug, Serialize)]
struct Form {
    encoding: &'static str,
    blob: String,
    size: u64,
    /// Where its bytes are; `None` when they are not here.
    held: Option<HeldBlob>,
    /// It is being fetched, or verified.
    on_its_way: bool,
}

#[derive(Debug, Serialize)]
struct TableEntry {
    highest_generation: u64,
    highest_revision: u64,
    /// The origin says that the service is gone.
    gone: bool,
    /// What stands on disk cannot be read.
    unreadable: bool,
    freshness: &'static str,
    #[serde(skip)]
    verdict: Verdict,
    /// Since the origin's last word.
    age_seconds: u64,
    fresh_seconds_left: u64,
    stale_seconds: u64,
    /// How long a request waits for the origin once it is asked first.
    wait_seconds: u64,
    /// The origin's event stream is the last that was heard of it.
    by_event_stream: bool,
    origin: Option<OriginState>,
    refused: Option<RefusedOffer>,
}

#[derive(Debug, Serialize)]
struct OriginState {
    name: String,
    up: bool,
    last_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct RefusedOffer {
    generation: u64,
    revision: u64,
    seconds_ago: u64,
}

impl Status {
    /// Explains a service, or one version of it. Nothing is thereby used, kept for longer, or asked of an origin. Blocks.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn explain(
        &self,
        service: &ServiceName,
        digest: Option<&TarballDigest>,
    ) -> Result<Explanation, StoreError> {
        let now = self.clock.now();
        let entry = self.table.look_at(service)?;
        let current = entry.as_ref().and_then(|entry| entry.version.as_ref());
        let past = self.lookup.past_versions(|name, _| name == service);
        let is_wanted =
            |version: &Version| digest.is_none_or(|digest| version.descriptor().publication().digest == *digest);
        let version = match current {
            Some(version) if is_wanted(version) => Some(self.held_version(version, true)),
            _ if digest.is_none() => None,
            _ => past.iter().find(|version| is_wanted(version)).map(|version| self.held_version(version, false)),
        };
        let failure = self.lookup.failures().remove(service);
        let mut explanation = Explanation {
            service: service.to_string(),
            words: Vec::new(),
            table_failure: self.table.write_failure(),
            version,
            past_versions: past.iter().map(|past| past.descriptor().publication().digest.to_string()).collect(),
            table: entry.map(|entry| self.table_entry(&entry, now)),
            last_failure: failure.as_ref().map(|(error, _)| error.reason()),
            last_failure_holds_seconds: failure.map(|(_, pause)| pause.as_secs()),
            being_asked: self.lookup.is_being_asked(service),
        };
        explanation.words = words::of(&explanation, digest);
        Ok(explanation)
    }

    fn held_version(&self, version: &Version, is_current: bool) -> HeldVersion {
        let descriptor = version.descriptor();
        let publication = descriptor.publication();
        let published_ago = SystemTime::now().duration_since(publication.published_at).unwrap_or_default();
        HeldVersion {
            digest: publication.digest.to_string(),
            is_current,
            generation: publication.generation,
            revision: descriptor.revision(),
            commit: publication.commit.to_string(),
            repository: publication.repository.to_string(),
            size: publication.size,
            published_seconds_ago: published_ago.as_secs(),
            representations: descriptor
                .representations()
                .iter()
                .map(|form| Form {
                    encoding: Encoding::as_str(form.encoding),
                    blob: form.digest.to_string(),
                    size: form.size,
                    held: self.blobs.look_at(&form.digest, form.size),
                    on_its_way: self.blobs.is_on_its_way(&form.digest),
                })
                .collect(),
        }
    }

    fn table_entry(&self, entry: &Entry, now: Moment) -> TableEntry {
        let parameters = &entry.rule.parameters;
        let age = self.table.age(entry, now);
        let verdict = entry.judge(age);
        let left = parameters.fresh.saturating_sub(age);
        TableEntry {
            highest_generation: entry.highest.0,
            highest_revision: entry.highest.1,
            gone: entry.version.is_none() && !entry.is_unreadable,
            unreadable: entry.is_unreadable,
            freshness: verdict.as_str(),
            verdict,
            age_seconds: age.as_secs(),
            fresh_seconds_left: if verdict == Verdict::Fresh { left.as_secs() } else { 0 },
            stale_seconds: parameters.stale_for(age),
            wait_seconds: parameters.wait.as_secs(),
            by_event_stream: self.table.is_vouched_for(entry),
            origin: entry.origin.map(|id| &self.origins.all()[id]).map(|origin| OriginState {
                name: origin.name().to_owned(),
                up: origin.is_up(),
                last_error: origin.last_error(),
            }),
            refused: entry.refused().map(|refused| RefusedOffer {
                generation: refused.offered.0,
                revision: refused.offered.1,
                seconds_ago: now.since(refused.at).as_secs(),
            }),
        }
    }
}
