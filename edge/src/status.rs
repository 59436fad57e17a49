//! The documents of `/status`, `/v1/explain` and `/readyz`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use serde_json::{Value, json};
use weir_cache::Cache;
use weir_cache::clock::{Clock, Moment};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::query::QueryError;
use weir_runtime::admin::Readiness;
use weir_runtime::bounds::Bound;
use weir_runtime::file_watch::WatchedFiles;
use weir_runtime::shutdown::Drain;
use weir_runtime::status_page::StatusPage;

use crate::access::Access;
use crate::catalog::{Catalog, Entry, Failure, Lookup};
use crate::heartbeats::Heartbeats;
use crate::history::History;
use crate::observed::Observed;
use crate::origin_client::{MAX_ORIGINS, Origins, Shields};
use crate::peer_api::PeerApi;
use crate::reload::Reloader;
use crate::self_api::SelfApi;
use crate::version::Version;

/// The most services that a reason names.
const MAX_NAMED: usize = 3;

/// The most issuers with failing keys that `/readyz` names.
const MAX_REASONS: usize = 5;

/// The errors of the last failed queries.
pub(crate) type Failures = HashMap<ServiceName, Failure>;

pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) lookup: Lookup,
    pub(crate) cache: Cache,
    pub(crate) origins: Arc<Origins>,
    pub(crate) shields: Shields,
    pub(crate) access: Access,
    pub(crate) peers: Option<PeerApi>,
    pub(crate) agents: SelfApi,
    pub(crate) observed: Observed,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) history: History,
    /// The last summary, and of when. The lock is held while one is made, so that one is made at a time.
    pub(crate) summed: Mutex<Option<(Moment, Value)>>,
    pub(crate) reloader: Arc<WatchedFiles<Reloader>>,
    pub(crate) clock: Clock,
    pub(crate) started: SystemTime,
    pub(crate) drain: Drain,
}

/// The services of a page of `/status`.
type Page = StatusPage<ServiceName>;

impl Status {
    /// Whether the edge can serve. A new edge needs to have reached an origin; one with a catalog does not. Expired
    /// certificates and unknown access lists make it not ready. A failing disk makes it degraded: it serves from
    /// memory.
    pub(crate) fn readiness(&self) -> Readiness {
        if self.drain.has_begun() {
            return Readiness::NotReady(vec!["draining".to_owned()]);
        }
        let in_use = self.origins.all().filter(|(id, _)| self.origins.is_in_use(*id));
        let down = in_use.filter(|(_, origin)| origin.is_down());
        let down: Vec<_> = down.map(|(_, origin)| origin.last_error().unwrap_or_default()).collect();
        let mut missing = Vec::new();
        if !self.origins.any_reached() && self.catalog.is_empty() {
            let mut reason = "the catalog is empty and no origin has been reached".to_owned();
            down.iter().for_each(|why| reason.extend(["; ", why]));
            missing.push(reason);
        }
        missing.extend(self.access.readiness_errors(&self.origins.clusters()));
        if self.reloader.user().certificate_has_expired() {
            missing.push("the certificate of the listener has expired: replace it".to_owned());
        }
        if !missing.is_empty() {
            return Readiness::NotReady(missing);
        }
        let catalog = self.catalog.write_failure();
        let mut errors: Vec<String> = catalog
            .map(|reason| format!("the catalog cannot be written, and a crash would lose updates: {reason}"))
            .into_iter()
            .collect();
        let disk = self.cache.disk_failure();
        errors.extend(disk.map(|reason| format!("the last object could not be written to disk: {reason}")));
        if self.access.has_unreadable_files() {
            errors.push(
                "a file of keys or denials is malformed, and its last valid contents apply: the log names the line"
                    .to_owned(),
            );
        }
        errors.extend(self.reloader.user().last_reload.refused());
        errors.extend(self.regressed());
        let failing = self.access.key_failures();
        errors.extend(failing.into_iter().take(MAX_REASONS));
        errors.extend(down.iter().map(|reason| format!("{reason}; cached versions are served")));
        if errors.is_empty() { Readiness::Ready } else { Readiness::Degraded(errors) }
    }

    /// The services of which an origin offers an older generation than was seen.
    fn regressed(&self) -> Option<String> {
        let all = self.catalog.all();
        let mut names: Vec<_> = all
            .iter()
            .filter(|(_, entry)| entry.rejected_generation().is_some())
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        let more = names.len().saturating_sub(MAX_NAMED);
        names.truncate(MAX_NAMED);
        let and_more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!names.is_empty()).then(|| {
            let names = names.join(", ");
            format!("an origin offers an older generation of {names}{and_more} than was seen before; it is rejected")
        })
    }

    /// The fill level of each bound.
    pub(crate) fn bounds(&self) -> Vec<Bound> {
        let mut bounds: Vec<_> = self.lookup.bounds().collect();
        bounds.extend(self.cache.bounds());
        bounds.extend(self.access.bounds());
        bounds.push(self.heartbeats.bound());
        bounds.extend(self.peers.iter().flat_map(PeerApi::bounds));
        bounds.extend(self.agents.bounds());
        bounds.push(self.observed.bound());
        bounds.push(("origins", self.origins.count() as u64, MAX_ORIGINS as u64));
        bounds
    }

    /// The document of `/status`: its head, and a page of services.
    ///
    /// # Errors
    /// The query has an unknown key or an invalid value.
    pub(crate) fn document(&self, query: &str) -> Result<Value, QueryError> {
        let page = Page::parse(query)?;
        let all = self.catalog.all();
        let total = all.len();
        let (listed, next) = services_of(&page, all);
        let failures = self.lookup.failures(|_| true);
        let services: Vec<_> = listed
            .iter()
            .map(|(name, entry)| self.service(name, Some(entry), entry.version.as_deref(), &failures))
            .collect();
        let mut document = self.head();
        document["services_total"] = total.into();
        document["services"] = services.into();
        document["next_after"] = next.into();
        Ok(document)
    }

    /// How the edge is, without its services.
    pub(crate) fn head(&self) -> Value {
        let now = self.clock.now();
        let (ready, reasons) = self.readiness().into_parts();
        let vouched = self.catalog.vouched();
        json!({
            "role": "edge",
            "name": self.name,
            "version": env!("CARGO_PKG_VERSION"),
            "started": humantime::format_rfc3339_seconds(self.started).to_string(),
            "ready": ready,
            "reasons": reasons,
            "origins": self.origins.all().map(|(id, origin)| json!({
                "name": origin.name(),
                "member": self.origins.member(id),
                "followed": self.origins.is_followed(id),
                "vouches_for": vouched.get(&id).copied().unwrap_or_default(),
                "up": origin.is_up(),
                "circuit": origin.circuit().into_str(),
                "last_error": origin.last_error(),
                "events_followed": self.catalog.lease(id).is_in_sync(),
                "last_heartbeat_seconds": self.catalog.lease(id).last_heartbeat().map(|at| now.since(at).as_secs()),
            })).collect::<Vec<_>>(),
            "shields": self.shields.all().iter().map(|shield| json!({
                "name": shield.name(),
                "up": shield.is_up(),
                "circuit": shield.circuit().into_str(),
                "last_error": shield.last_error(),
            })).collect::<Vec<_>>(),
            "cache": self.cache.usage(),
            "agents": self.observed.summary(),
        })
    }

    /// The document of `/v1/explain`: a service, or one version of it. `None`: neither the catalog nor a request nor an agent
    /// has named the service. Has no side effects.
    pub(crate) fn explain(&self, name: &ServiceName, digest: Option<&TarballDigest>) -> Option<Value> {
        let mut document = self.explain_version(name, digest);
        let (agents, agents_total) = self.observed.of_service(name);
        let is_known = self.catalog.get(name).is_some()
            || self.catalog.was_evicted(name)
            || document["held"] == true
            || !document["last_failure"].is_null()
            || !agents.is_empty();
        document["agents"] = agents.into();
        document["agents_total"] = agents_total.into();
        is_known.then_some(document)
    }

    fn explain_version(&self, name: &ServiceName, digest: Option<&TarballDigest>) -> Value {
        let failures = self.lookup.failures(|failed| failed == name);
        let entry = self.catalog.get(name);
        let current = entry.as_ref().and_then(|entry| entry.version.as_deref());
        match digest {
            Some(digest) if current.is_none_or(|current| current.descriptor().publication().digest != *digest) => {
                let past = self.lookup.past_versions(|service, held| service == name && held == digest).pop();
                self.service(name, None, past.as_deref(), &failures)
            }
            _ => self.service(name, entry.as_deref(), current, &failures),
        }
    }

    /// Describes a service, or a past version of it when there is no entry.
    pub(crate) fn service(
        &self,
        name: &ServiceName,
        entry: Option<&Entry>,
        version: Option<&Version>,
        failures: &Failures,
    ) -> Value {
        let age = entry.map(|entry| self.catalog.age(entry, self.clock.now()));
        let aged = entry.zip(age);
        let origin = entry.and_then(|entry| entry.origin).map(|id| self.origins.get(id));
        let publication = version.map(|version| version.descriptor().publication());
        let staged = version.and_then(Version::later).map(|later| later.descriptor().publication());
        let seen = version.and_then(|version| self.catalog.revision_status(name, version));
        let is_cut_off = seen.as_ref().is_some_and(|seen| seen.upstream_unreachable_since.is_some());
        let seen = seen.map(|seen| {
            let since = seen.upstream_unreachable_since;
            let since = since.map(|since| humantime::format_rfc3339_seconds(since).to_string());
            json!({ "revision_id": seen.revision_id, "upstream_unreachable_since": since })
        });
        let representations = version.iter().flat_map(|version| version.descriptor().representations());
        let why = match (entry, publication, &origin) {
            (None, None, _) => "it is not cached; a request queries the origins",
            (None, Some(_), _) => "a past version never changes",
            (Some(_), None, _) => "the origin removed the service",
            (Some(_), _, None) => "its origin is no longer configured; all origins are queried",
            (_, _, Some(origin)) if !origin.is_up() => "the origin is down; the cached version is served",
            _ if is_cut_off => "the newest that the origin has; it does not reach Git",
            (Some(entry), ..) if self.catalog.is_leased(entry) => "the origin's event stream confirms it",
            _ => "as of the last revalidation",
        };
        json!({
            "service": name.as_str(),
            "held": publication.is_some(),
            "digest": publication.map(|p| p.digest.to_string()),
            "commit": publication.and_then(|p| p.commit.as_ref()),
            "revision_id": publication.map(|p| &p.revision_id),
            "version": publication.and_then(|p| p.version.as_ref()),
            "parts": publication.map(|p| &p.parts),
            "repository": publication.map(|p| p.repository.to_string()),
            "size": publication.map(|p| p.size),
            "seen": seen,
            "staged": staged.map(|p| json!({ "digest": p.digest, "generation": p.generation })),
            "generation": entry.map(|entry| entry.highest.0),
            "revision": entry.map(|entry| entry.highest.1),
            "freshness": aged.map(|(entry, age)| entry.evaluate(age).into_str()),
            "age_seconds": age.map(|age| age.as_secs()),
            "stale_seconds": aged.map(|(entry, age)| entry.policy.limits.stale_for(age)),
            "origin": origin.as_ref().map(|origin| origin.name()),
            "representations": representations.map(|r| json!({
                "encoding": r.encoding.as_str(),
                "held": self.cache.tier(&r.digest),
            })).collect::<Vec<_>>(),
            "last_failure": failures.get(name).map(|failure| failure.error.reason()),
            "last_failed_at": failures.get(name).map(|it| humantime::format_rfc3339_seconds(it.time).to_string()),
            "refused_generation": entry.and_then(Entry::rejected_generation),
            "why": why,
        })
    }
}

/// The services of a page in the order of names, and the cursor of the next page if there is one.
fn services_of<T>(page: &Page, all: Vec<(ServiceName, T)>) -> (Vec<(ServiceName, T)>, Option<String>) {
    let is_listed = |name: &ServiceName| {
        page.service.as_ref().is_none_or(|wanted| name == wanted)
            && page.after.as_ref().is_none_or(|after| name > after)
    };
    let mut listed: Vec<_> = all.into_iter().filter(|(name, _)| is_listed(name)).collect();
    let by_name = |(one, _): &(ServiceName, T), (other, _): &(ServiceName, T)| one.cmp(other);
    let more = listed.len() > page.limit;
    if more {
        listed.select_nth_unstable_by(page.limit, by_name);
        listed.truncate(page.limit);
    }
    listed.sort_by(by_name);
    let next = listed.last().filter(|_| more).map(|(name, _)| name.to_string());
    (listed, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_one_another() {
        let all = || (0..5).rev().map(|n| (format!("s{n}").parse().unwrap(), n)).collect::<Vec<_>>();
        let (mut query, mut seen) = ("limit=2".to_owned(), Vec::new());
        loop {
            let (listed, next) = services_of(&Page::parse(&query).unwrap(), all());
            seen.extend(listed.into_iter().map(|(_, n)| n));
            let Some(next) = next else { break };
            query = format!("limit=2&after={next}");
        }
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        let (listed, next) = services_of(&Page::parse("service=s3").unwrap(), all());
        assert_eq!((listed.len(), listed[0].1, next), (1, 3, None));
    }
}
