//! Resolves the refs of services to commits, verifies these, and computes their content keys.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};

use weir_git::commit_policy::Verifier;
use weir_git::revision::{self, ReachabilityCache};
use weir_git::tree::content_key;
use weir_protocol::commit_id::CommitId;
use weir_protocol::revision_id::RevisionId;
use weir_tarball::ContentKey;
use weir_upstream::RepositoryConfig;

use super::GitSource;
use crate::{Age, Candidate, ResolvedServices, Service, ServiceFailure};

impl GitSource {
    /// Resolves the commits of services, and the keys of their tarballs.
    pub(crate) fn resolve(
        &self,
        config: &RepositoryConfig,
        services: &[Arc<Service>],
        stop: &AtomicBool,
    ) -> Result<ResolvedServices, ServiceFailure> {
        let repository = self.open()?;
        let verifications = &self.shared.metrics.verifications;
        let count = |result: &str| verifications.with_label_values(&[self.repository.as_str(), result]).inc();
        let mut verifier = config.verify.as_ref().map(|policy| Verifier::new(policy, &repository, &count, stop));
        let mut reachability = self.reachability.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned: HashSet<_> = services.iter().filter_map(|service| service.followed.revision()?.commit()).collect();
        if !pinned.is_empty() && reachability.search(&repository, &pinned, stop).is_err() {
            // Each commit is then searched alone and reports its own error.
            *reachability = ReachabilityCache::default();
        }
        let (seen_at, mut ancestors) = (self.polled_at(), HashMap::new());
        let mut resolve = |service: &Arc<Service>| -> Result<Candidate, ServiceFailure> {
            let followed = Self::revision_of(&service.followed)?;
            let tip = revision::tip(&repository, followed, &mut reachability, stop)
                .map_err(|error| self.resolve_failure(&error, service))?;
            if let Some(verifier) = &mut verifier {
                verifier.check(&tip).map_err(|error| self.verify_failure(service, &tip, &error))?;
            }
            let commit = tip.commit;
            let key = content_key(&repository, &commit, &service.repository, &service.selection)
                .map_err(|error| self.tarball_failure("select", &error))?;
            if seen_at.is_none() && self.may_be_older(service, &repository, &commit, &key) {
                let reason = "the mirror may be older than the published version, until the upstream was polled";
                return Err(ServiceFailure::transient("resolve", reason.to_owned()));
            }
            let (revision, parts) = (RevisionId::from(&commit), Vec::new());
            let tag = tip.reference.as_deref().and_then(|name| name.strip_prefix("refs/tags/"));
            // Not every tag can be named as one, as `release/1.2`.
            let named = tag.and_then(|tag| tag.parse().ok());
            let version = tag.and_then(|tag| service.followed.version(tag));
            let committed = service.oci.is_on().then(|| revision::committed_at(&repository, &commit)).flatten();
            let mut age = Box::new(Age { seen_at, version, committed, ..Age::default() });
            age.behind = service.behind(&revision, &age);
            if let Some(last) = service.last_revision().and_then(|last| last.commit()).filter(|_| age.behind.is_none())
            {
                let is_ancestor = ancestors.entry((commit.clone(), last.clone()));
                let is_ancestor =
                    *is_ancestor.or_insert_with(|| revision::is_ancestor(&repository, &commit, &last, stop));
                age.behind = is_ancestor.then(|| format!("commit {commit} is an ancestor of {last}"));
            }
            Ok(Candidate { service: service.clone(), revision, version: named, parts, key, age, stepped_back: None })
        };
        let resolve = |service: &Arc<Service>| {
            let found = resolve(service);
            if found.is_err() {
                service.not_found(seen_at);
            }
            (service.clone(), found)
        };
        Ok(services.iter().map(resolve).collect())
    }

    /// Whether the service has published other content from this repository. A ref may have been moved to an older commit,
    /// so no order of commits tells which content is newer.
    fn may_be_older(&self, service: &Service, mirror: &gix::Repository, commit: &CommitId, key: &ContentKey) -> bool {
        let is_pinned = service.followed.revision().is_some_and(|revision| revision.commit().is_some());
        let Some(published) = service.published().filter(|_| !is_pinned) else { return false };
        let Some(published) = published.commit() else { return true };
        let has_same_content = || {
            // `content_key` looks for trees only.
            revision::find_commit(mirror, &published).is_ok()
                && content_key(mirror, &published, &service.repository, &service.selection)
                    .is_ok_and(|published| published == *key)
        };
        published != *commit && !has_same_content()
    }
}
