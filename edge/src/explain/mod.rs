//! What is held of a service, how fresh it is, from where, and why: gathered without changing any of it.

mod words;

use std::time::SystemTime;

use serde::Serialize;
use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;
use weir_shared::name::ServiceName;

use crate::cache::{BodyRequest, CachedFrames};
use crate::catalog::{Entry, Freshness};
use crate::clock::Moment;
use crate::origin_client::OriginId;
use crate::status::Status;
use crate::version::Version;

/// The document of `/v1/explain`.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    service: String,
    /// All of it for a person, a sentence each.
    words: Vec<String>,
    /// Why the disk does not take the catalog.
    catalog_failure: Option<String>,
    /// The version that was asked about, else the current one.
    version: Option<HeldVersion>,
    /// Other versions that are held in memory, by digest.
    past_versions: Vec<String>,
    /// What is known of the service as such; `None` when nothing is.
    entry: Option<StoredEntry>,
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
    /// The manifest, or the one frame.
    object: String,
    size: u64,
    cached: CachedFrames,
}

#[derive(Debug, Serialize)]
struct StoredEntry {
    highest_generation: u64,
    highest_revision: u64,
    /// The origin says that the service is gone.
    gone: bool,
    freshness: &'static str,
    #[serde(skip)]
    verdict: Freshness,
    /// Since its last validation.
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
    pub(crate) fn explain(&self, service: &ServiceName, digest: Option<&TarballDigest>) -> Explanation {
        let now = self.clock.now();
        let entry = self.catalog.get(service);
        let current = entry.as_ref().and_then(|entry| entry.version.as_ref());
        let past = self.lookup.past_versions(|name, _| name == service);
        let is_wanted =
            |version: &Version| digest.is_none_or(|digest| version.descriptor().publication().digest == *digest);
        let origin = entry.as_ref().and_then(|entry| entry.origin);
        let version = match current {
            Some(version) if is_wanted(version) => Some(self.held_version(version, true, origin)),
            _ if digest.is_none() => None,
            _ => {
                past.iter().find(|version| is_wanted(version)).map(|version| self.held_version(version, false, origin))
            }
        };
        let failure = self.lookup.failures().remove(service);
        let mut explanation = Explanation {
            service: service.to_string(),
            words: Vec::new(),
            catalog_failure: self.catalog.write_failure(),
            version,
            past_versions: past.iter().map(|past| past.descriptor().publication().digest.to_string()).collect(),
            entry: entry.as_ref().map(|entry| self.stored_entry(entry, now)),
            last_failure: failure.as_ref().map(|(error, _)| error.reason()),
            last_failure_holds_seconds: failure.map(|(_, pause)| pause.as_secs()),
            being_asked: self.lookup.is_being_queried(service),
        };
        explanation.words = words::of(&explanation, digest);
        explanation
    }

    fn held_version(&self, version: &Version, is_current: bool, origin: Option<OriginId>) -> HeldVersion {
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
                .map(|stored| Form {
                    encoding: Encoding::as_str(stored.encoding),
                    object: stored.digest.to_string(),
                    size: stored.size,
                    cached: self.cache.look_at(&BodyRequest {
                        repository: publication.repository.clone(),
                        origin,
                        stored: stored.clone(),
                        tar_size: publication.size,
                    }),
                })
                .collect(),
        }
    }

    fn stored_entry(&self, entry: &Entry, now: Moment) -> StoredEntry {
        let limits = &entry.policy.limits;
        let age = self.catalog.age(entry, now);
        let verdict = entry.evaluate(age);
        let left = limits.fresh.saturating_sub(age);
        StoredEntry {
            highest_generation: entry.highest.0,
            highest_revision: entry.highest.1,
            gone: entry.version.is_none(),
            freshness: verdict.as_str(),
            verdict,
            age_seconds: age.as_secs(),
            fresh_seconds_left: if verdict == Freshness::Fresh { left.as_secs() } else { 0 },
            stale_seconds: limits.stale_for(age),
            wait_seconds: limits.wait.as_secs(),
            by_event_stream: self.catalog.is_leased(entry),
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
