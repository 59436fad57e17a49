//! Resolves the refs of services to commits, verifies these, and computes their content keys.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};

use super::GitSource;
use super::commit_policy::Policy;
use super::revision::{self, ReachabilityCache};
use super::tree::content_key;
use crate::config::RepositoryConfig;
use crate::publish::Candidate;
use crate::service::Service;
use crate::source::{ResolvedServices, ServiceFailure};

impl GitSource {
    pub(super) fn resolve_all(
        &self,
        config: &RepositoryConfig,
        services: &[Arc<Service>],
        stop: &AtomicBool,
    ) -> Result<ResolvedServices, ServiceFailure> {
        let repository = self.open()?;
        let policy = config.verify.as_ref().map(|verify| {
            let verifications = self.shared.metrics.verifications.clone();
            Policy::new(verify.clone(), self.repository.clone(), verifications)
        });
        let mut verifier = policy.as_ref().map(|policy| policy.verifier(&repository, stop));
        let mut reachability = self.reachability.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned: HashSet<_> = services.iter().filter_map(|service| service.revision.commit()).collect();
        if !pinned.is_empty() && reachability.search(&repository, &pinned, stop).is_err() {
            // Each commit is then searched alone and reports its own error.
            *reachability = ReachabilityCache::default();
        }
        let mut resolve = |service: &Arc<Service>| -> Result<Candidate, ServiceFailure> {
            let tip = revision::tip(&repository, &service.revision, &mut reachability, stop)
                .map_err(|error| self.revision_failure(&error))?;
            if let Some(verifier) = &mut verifier {
                verifier.check(&tip).map_err(|error| self.verify_failure(service, &tip, &error))?;
            }
            let commit = tip.commit;
            let key = content_key(&repository, &commit, &service.repository, &service.selection)
                .map_err(|error| self.tarball_failure("select", &error))?;
            Ok(Candidate { service: service.clone(), commit, key })
        };
        Ok(services.iter().map(|service| (service.clone(), resolve(service))).collect())
    }
}
