//! `POST /v1/purge`: drops what is cached of a digest, a service or a repository, or makes it stale.

use std::collections::HashSet;

use prometheus::IntCounterVec;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};

use super::error::OperatorError;
use crate::cache::BodyRequest;
use crate::catalog::PurgeMode;
use crate::origin_client::OriginId;
use crate::status::Status;
use crate::version::Version;

#[derive(Debug)]
pub(super) struct Order {
    what: What,
    mode: PurgeMode,
}

#[derive(Debug)]
enum What {
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

impl Order {
    /// Parses the request body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, OperatorError> {
        let malformed = |why: String| OperatorError::Malformed(why);
        let document: Document =
            serde_json::from_slice(body).map_err(|error| malformed(format!("the body is no purge order: {error}.")))?;
        let what = match (document.digest, document.service, document.repository) {
            (Some(digest), None, None) => {
                let wrong = |error| malformed(format!("`digest`: {error}."));
                What::Digest(digest.parse().map_err(wrong)?, digest.parse().map_err(wrong)?)
            }
            (None, Some(name), None) => {
                What::Service(name.parse().map_err(|error| malformed(format!("`service`: {error}.")))?)
            }
            (None, None, Some(name)) => {
                What::Repository(name.parse().map_err(|error| malformed(format!("`repository`: {error}.")))?)
            }
            _ => {
                let one = "name exactly one of `digest`, `service` and `repository`.";
                return Err(malformed(one.to_owned()));
            }
        };
        let mode = if document.soft { PurgeMode::Soft } else { PurgeMode::Hard };
        Ok(Self { what, mode })
    }

    /// Purges, and returns what was purged. Idempotent. Blocks.
    pub(super) fn carry_out(&self, status: &Status, purges: &IntCounterVec) -> Value {
        let (kind, name) = match &self.what {
            What::Digest(digest, _) => ("digest", digest.to_string()),
            What::Service(service) => ("service", service.to_string()),
            What::Repository(repository) => ("repository", repository.to_string()),
        };
        let mode = match self.mode {
            PurgeMode::Soft => "soft",
            PurgeMode::Hard => "hard",
        };
        let met = self.find(status);
        // A service without an entry may have past versions and a negative entry.
        let unknown = self.service().filter(|service| !met.services.contains(*service));
        met.services.iter().chain(unknown).for_each(|service| status.lookup.purge(service, self.mode));
        let mut purged = match self.mode {
            PurgeMode::Hard => status.cache.purge(&met.representations),
            PurgeMode::Soft => status.cache.reverify(&met.representations),
        };
        if let (What::Digest(_, object), PurgeMode::Hard) = (&self.what, self.mode) {
            let bytes = status.cache.purge_object(object);
            purged.objects += u64::from(bytes.is_some());
            purged.bytes += bytes.unwrap_or(0);
        }
        purges.with_label_values(&[kind, mode]).inc();
        let services = met.services.len();
        tracing::info!(
            kind,
            name,
            mode,
            services,
            objects = purged.objects,
            bytes = purged.bytes,
            "an operator has purged what was held"
        );
        json!({
            "kind": kind, "name": name, "mode": mode,
            "services": services, "objects": purged.objects, "bytes": purged.bytes,
        })
    }

    fn service(&self) -> Option<&ServiceName> {
        match &self.what {
            What::Service(service) => Some(service),
            What::Digest(..) | What::Repository(_) => None,
        }
    }

    fn find(&self, status: &Status) -> Met {
        let mut met = Met::default();
        match &self.what {
            What::Digest(tarball, _) => {
                let is_it = |version: &Version| version.descriptor().publication().digest == *tarball;
                for (_, entry) in status.catalog.all() {
                    met.add(entry.version.iter().filter(|version| is_it(version)), entry.origin);
                }
                met.add(status.lookup.past_versions(|_, digest| digest == tarball).iter(), None);
            }
            What::Service(service) => {
                if let Some(entry) = status.catalog.get(service) {
                    met.services.insert(service.clone());
                    met.add(entry.version.iter(), entry.origin);
                }
                met.add(status.lookup.past_versions(|name, _| name == service).iter(), None);
            }
            What::Repository(repository) => {
                let is_of_it = |version: &Version| version.descriptor().publication().repository == *repository;
                for (service, entry) in status.catalog.all() {
                    if entry.version.as_ref().is_some_and(|version| is_of_it(version)) {
                        met.services.insert(service);
                        met.add(entry.version.iter(), entry.origin);
                    }
                }
                let past = status.lookup.past_versions(|_, _| true);
                met.add(past.iter().filter(|version| is_of_it(version)), None);
            }
        }
        met
    }
}

/// The services and representations that a request matches.
#[derive(Default)]
struct Met {
    services: HashSet<ServiceName>,
    representations: Vec<BodyRequest>,
}

impl Met {
    fn add<'a>(&mut self, versions: impl Iterator<Item = &'a std::sync::Arc<Version>>, origin: Option<OriginId>) {
        for version in versions {
            let publication = version.descriptor().publication();
            self.representations.extend(version.descriptor().representations().iter().map(|stored| BodyRequest {
                repository: publication.repository.clone(),
                origin,
                stored: stored.clone(),
                tar_size: publication.size,
            }));
        }
    }
}
