//! `POST /v1/purge`: drops what is cached of a digest, a service or a repository, or makes it stale.

use std::collections::HashSet;

use prometheus::IntCounterVec;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_cache::{BodyRequest, OriginId};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::problem::Problem;

use crate::catalog::PurgeMode;
use crate::status::Status;
use crate::version::Version;

#[derive(Debug)]
pub(super) struct PurgeRequest {
    target: PurgeTarget,
    mode: PurgeMode,
}

#[derive(Debug)]
enum PurgeTarget {
    /// A tarball with all its representations, or one object: their digests look alike.
    Digest(TarballDigest, ObjectDigest),
    Service(ServiceName),
    Repository(RepositoryName),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    digest: Option<String>,
    service: Option<String>,
    repository: Option<String>,
    #[serde(default)]
    soft: bool,
}

impl PurgeRequest {
    /// Parses the request body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Problem> {
        let malformed = |why: String| Problem::malformed(why);
        let document: Document = serde_json::from_slice(body)
            .map_err(|error| malformed(format!("the body is not a valid purge request: {error}.")))?;
        let target = match (document.digest, document.service, document.repository) {
            (Some(digest), None, None) => {
                let wrong = |error| malformed(format!("`digest`: {error}."));
                PurgeTarget::Digest(digest.parse().map_err(wrong)?, digest.parse().map_err(wrong)?)
            }
            (None, Some(name), None) => {
                PurgeTarget::Service(name.parse().map_err(|error| malformed(format!("`service`: {error}.")))?)
            }
            (None, None, Some(name)) => {
                PurgeTarget::Repository(name.parse().map_err(|error| malformed(format!("`repository`: {error}.")))?)
            }
            _ => {
                let one = "name exactly one of `digest`, `service` and `repository`.";
                return Err(malformed(one.to_owned()));
            }
        };
        let mode = if document.soft { PurgeMode::Soft } else { PurgeMode::Hard };
        Ok(Self { target, mode })
    }

    /// Purges, and returns what was purged. Idempotent. Blocks.
    pub(super) fn execute(&self, status: &Status, purges: &IntCounterVec) -> Value {
        let (kind, name) = match &self.target {
            PurgeTarget::Digest(digest, _) => ("digest", digest.to_string()),
            PurgeTarget::Service(service) => ("service", service.to_string()),
            PurgeTarget::Repository(repository) => ("repository", repository.to_string()),
        };
        let mode = match self.mode {
            PurgeMode::Soft => "soft",
            PurgeMode::Hard => "hard",
        };
        let scope = self.find(status);
        // A service without an entry may have past versions and a negative entry.
        let unknown = self.service().filter(|service| !scope.services.contains(*service));
        scope.services.iter().chain(unknown).for_each(|service| status.lookup.purge(service, self.mode));
        let mut purged = match self.mode {
            PurgeMode::Hard => status.cache.purge(&scope.representations),
            PurgeMode::Soft => status.cache.reverify(&scope.representations),
        };
        if let (PurgeTarget::Digest(_, object), PurgeMode::Hard) = (&self.target, self.mode) {
            let bytes = status.cache.purge_object(object);
            purged.objects += u64::from(bytes.is_some());
            purged.bytes += bytes.unwrap_or(0);
        }
        purges.with_label_values(&[kind, mode]).inc();
        let services = scope.services.len();
        tracing::info!(
            kind,
            name,
            mode,
            services,
            objects = purged.objects,
            bytes = purged.bytes,
            "an operator purged cached content"
        );
        json!({
            "kind": kind, "name": name, "mode": mode,
            "services": services, "objects": purged.objects, "bytes": purged.bytes,
        })
    }

    fn service(&self) -> Option<&ServiceName> {
        match &self.target {
            PurgeTarget::Service(service) => Some(service),
            PurgeTarget::Digest(..) | PurgeTarget::Repository(_) => None,
        }
    }

    fn find(&self, status: &Status) -> PurgeScope {
        let mut scope = PurgeScope::default();
        match &self.target {
            PurgeTarget::Digest(tarball, _) => {
                let matches = |version: &Version| version.descriptor().publication().digest == *tarball;
                for (_, entry) in status.catalog.all() {
                    let versions = entry.version.iter().flat_map(Version::all);
                    scope.add(versions.filter(|version| matches(version)), entry.origin);
                }
                scope.add(status.lookup.past_versions(|_, digest| digest == tarball).iter(), None);
            }
            PurgeTarget::Service(service) => {
                if let Some(entry) = status.catalog.get(service) {
                    scope.services.insert(service.clone());
                    scope.add(entry.version.iter().flat_map(Version::all), entry.origin);
                }
                scope.add(status.lookup.past_versions(|name, _| name == service).iter(), None);
            }
            PurgeTarget::Repository(repository) => {
                let matches = |version: &Version| version.descriptor().publication().repository == *repository;
                for (service, entry) in status.catalog.all() {
                    if entry.version.as_ref().is_some_and(|version| matches(version)) {
                        scope.services.insert(service);
                        scope.add(entry.version.iter().flat_map(Version::all), entry.origin);
                    }
                }
                let past = status.lookup.past_versions(|_, _| true);
                scope.add(past.iter().filter(|version| matches(version)), None);
            }
        }
        scope
    }
}

/// The services and representations that a request matches.
#[derive(Default)]
struct PurgeScope {
    services: HashSet<ServiceName>,
    representations: Vec<BodyRequest>,
}

impl PurgeScope {
    fn add<'a>(&mut self, versions: impl Iterator<Item = &'a std::sync::Arc<Version>>, origin: Option<OriginId>) {
        for version in versions {
            let publication = version.descriptor().publication();
            self.representations.extend(version.bodies().map(|(stored, tar_size)| BodyRequest {
                repository: publication.repository.clone(),
                origin,
                stored,
                tar_size,
                request_id: None,
            }));
        }
    }
}
