//! The steps of a service: resolve its ref, publish cached content, build and publish new content.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::task::{AbortHandle, JoinError};
use tokio_util::task::AbortOnDropHandle;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_source::{Candidate, ResolvedServices, Service, ServiceFailure};

use super::context::Context;
use super::job::JobPanicked;
use super::lfs::{LfsPolicy, NeededObjects};
use super::service_states::Action;
use super::worker::Worker;
use crate::publish::{Cached, PublishError};

/// The result of publishing cached content, for each candidate.
pub(super) type CachedResults = Result<Vec<Cached>, PublishError>;

/// A candidate with the result of its build. False: its service needs another content meanwhile.
pub(super) type BuildEnd = (Candidate, Result<bool, ServiceFailure>);

/// A running build. Dropping it stops it.
pub(super) struct RunningBuild {
    pub(super) candidate: Candidate,
    task: AbortHandle,
    needed_objects: NeededObjects,
    /// Determines the objects that a newer content needs.
    restricting: Option<AbortOnDropHandle<()>>,
}

impl Drop for RunningBuild {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Publishes candidates whose content is cached, but for services whose name another repository has.
async fn publish_cached(context: &Context, repository: &RepositoryName, candidates: Vec<Candidate>) -> CachedResults {
    let refused = match &context.names {
        Some(names) => {
            let services: Vec<ServiceName> = candidates.iter().map(|each| each.service.name.clone()).collect();
            names.acquire(repository, &services).await
        }
        None => BTreeMap::new(),
    };
    let (held_elsewhere, held): (Vec<_>, Vec<_>) =
        candidates.iter().cloned().partition(|each| refused.contains_key(&each.service.name));
    let cached = context.publisher.publish_cached(repository, &held, SystemTime::now()).await?;
    let refused = held_elsewhere.into_iter().map(|each| {
        let error = refused[&each.service.name].clone();
        (each.service.name.clone(), Cached::Refused(error))
    });
    let mut results: BTreeMap<ServiceName, Cached> =
        held.into_iter().map(|each| each.service.name.clone()).zip(cached).chain(refused).collect();
    let result = |each: &Candidate| results.remove(&each.service.name).unwrap_or(Cached::NeedsBuild);
    Ok(candidates.iter().map(result).collect())
}

/// What is published now, and what after that. For what is unheld the name is taken first: the others do not wait for that.
fn held_first<T>(candidates: Vec<T>, is_unheld: impl Fn(&T) -> bool) -> (Vec<T>, Vec<T>) {
    let (unheld, held): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_unheld);
    if held.is_empty() { (unheld, held) } else { (held, unheld) }
}

impl Worker {
    /// Starts to resolve the refs of due services.
    pub(super) fn start_resolve(&mut self) {
        if self.resolve_task.is_some() || !self.states.has_due() {
            return;
        }
        let due = self.states.start_resolve();
        for name in &due {
            // Inserted again if it fails again.
            self.needs_reconcile.remove(name);
        }
        self.resolving = due.iter().filter_map(|name| self.services.get(name).cloned()).collect();
        let (pipeline, services) = (self.pipeline.clone(), self.resolving.clone());
        self.resolve_task = Some(self.spawn(async move { pipeline.resolve(services).await }));
    }

    /// Handles resolved refs. `None`: the task panicked.
    pub(super) fn handle_resolved(&mut self, resolved: Option<Result<ResolvedServices, ServiceFailure>>) {
        let resolving = std::mem::take(&mut self.resolving);
        let panicked = || Err(ServiceFailure::transient("resolve", JobPanicked.to_string()));
        let mut resolved = resolved
            .unwrap_or_else(panicked)
            .unwrap_or_else(|failure| resolving.into_iter().map(|service| (service, Err(failure.clone()))).collect());
        resolved.retain(|(service, _)| self.is_assigned(service));
        let action = |(service, found): &(Arc<Service>, Result<Candidate, _>)| {
            self.states.resolved(&service.name, found.as_ref().ok().map(|candidate| &candidate.key))
        };
        let actions: Vec<Action> = resolved.iter().map(action).collect();
        self.states.end_resolve();
        for (action, (service, found)) in actions.into_iter().zip(resolved) {
            match (action, found) {
                (Action::PublishCached, Ok(candidate)) => self.candidates.push(candidate),
                (Action::RecordFailure, Err(failure)) => self.record_result(&service, Err(failure)),
                (action, found) => {
                    // It fetches LFS objects, which polls do not wait for.
                    self.unapplied_polls.remove(&service.name);
                    if let (Action::RestrictFetch, Ok(candidate)) = (action, found) {
                        self.restrict_fetch(candidate);
                    }
                }
            }
        }
    }

    /// Starts to publish the candidates whose content is cached.
    pub(super) fn start_publish_cached(&mut self) {
        if self.cached_task.is_some() || self.candidates.is_empty() {
            return;
        }
        let candidates = std::mem::take(&mut self.candidates);
        (self.cached_candidates, self.candidates) = match &self.context.names {
            Some(_) => {
                let services: Vec<ServiceName> = candidates.iter().map(|each| each.service.name.clone()).collect();
                let unheld = self.context.publisher.repositories.unheld(&self.config.name, &services);
                held_first(candidates, |each| unheld.contains(&each.service.name))
            }
            None => (candidates, Vec::new()),
        };
        let (context, name) = (self.context.clone(), self.config.name.clone());
        let candidates = self.cached_candidates.clone();
        self.cached_task = Some(self.spawn(async move { publish_cached(&context, &name, candidates).await }));
    }

    /// Handles the results of publishing cached content. `None`: the task panicked.
    pub(super) fn handle_cached(&mut self, results: Option<CachedResults>) {
        let candidates = std::mem::take(&mut self.cached_candidates);
        let failed = |failure: ServiceFailure| candidates.iter().map(|_| Err(failure.clone())).collect();
        let results: Vec<Result<Cached, ServiceFailure>> = match results {
            Some(Ok(results)) => results.into_iter().map(Ok).collect(),
            Some(Err(error)) => failed(error.into()),
            None => failed(ServiceFailure::transient("store", JobPanicked.to_string())),
        };
        for (candidate, cached) in candidates.into_iter().zip(results) {
            let service = candidate.service.clone();
            if !self.is_assigned(&service) {
                continue;
            }
            let blocked_by = self.back_offs.blocked_by(&service.name, &candidate.key, Instant::now());
            let result = match (cached, blocked_by) {
                (Ok(Cached::NeedsBuild), None) => {
                    self.states.cached_ended(&service.name, Some(candidate.key));
                    self.start_build(candidate);
                    continue;
                }
                (Ok(Cached::UpToDate), _) => {
                    service.followed(&candidate.revision);
                    Ok(candidate.revision)
                }
                (Ok(Cached::NeedsBuild), Some(failure)) | (Err(failure), _) => Err(failure),
                (Ok(Cached::Refused(error)), _) => Err(error.into()),
            };
            self.states.cached_ended(&service.name, None);
            self.record_result(&service, result);
        }
    }

    fn start_build(&mut self, candidate: Candidate) {
        let name = candidate.service.name.clone();
        let needed_objects = NeededObjects::default();
        let policy = LfsPolicy {
            may_fetch: !self.suppress_errors(&name),
            progress: Some(self.lfs_progress.0.clone()),
            needed_objects: needed_objects.clone(),
        };
        let (pipeline, built) = (self.pipeline.clone(), candidate.clone());
        let task = self.build_tasks.spawn(self.context.threads.track(async move {
            let result = pipeline.build_and_publish(&built, &policy).await;
            (built, result)
        }));
        self.builds.insert(name, RunningBuild { candidate, task, needed_objects, restricting: None });
    }

    /// Restricts the LFS fetch of a running build to objects that a newer candidate needs too.
    fn restrict_fetch(&mut self, candidate: Candidate) {
        let name = candidate.service.name.clone();
        let Some(build) = self.builds.get(&name) else { return };
        let (pipeline, needed_objects) = (self.pipeline.clone(), build.needed_objects.clone());
        let restricting = self.spawn(async move {
            // A failure appears again when the service is resolved after the build.
            let files = pipeline.missing_lfs_files(&candidate.service, &candidate.revision).await.unwrap_or_default();
            needed_objects.send_replace(Some(files.into_iter().map(|file| file.pointer.oid).collect()));
        });
        self.builds.entry(name).and_modify(|build| build.restricting = Some(restricting));
    }

    /// Handles the end of a build.
    pub(super) fn handle_build_end(&mut self, end: Result<BuildEnd, JoinError>) {
        let (candidate, result) = match end {
            Ok(end) => end,
            Err(error) => {
                let failed = self.builds.values().find(|build| build.task.id() == error.id());
                // A build that was stopped has no result.
                let Some(panicked) = failed.filter(|_| error.is_panic()) else { return };
                (panicked.candidate.clone(), Err(ServiceFailure::transient("build", JobPanicked.to_string())))
            }
        };
        let Candidate { service, revision, key, .. } = candidate;
        if !self.is_assigned(&service) {
            return;
        }
        self.builds.remove(&service.name);
        self.states.build_ended(&service.name);
        if let Err(failure) = &result {
            let (interval, times) = (self.config.poll_interval, (Instant::now(), SystemTime::now()));
            self.back_offs.failed(&service.name, key, failure, interval, times, fastrand::f64());
            // The build may have found that something must be fetched again.
            self.poll_if_needed();
        }
        match result {
            Ok(true) => self.record_result(&service, Ok(revision)),
            Ok(false) => {}
            Err(failure) => self.record_result(&service, Err(failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::held_first;

    #[test]
    fn what_is_held_does_not_wait_for_what_is_not() {
        let is_unheld = |number: &u8| *number > 10;
        assert_eq!(held_first(vec![11, 1, 12, 2], is_unheld), (vec![1, 2], vec![11, 12]));
        assert_eq!(held_first(vec![11, 12], is_unheld), (vec![11, 12], vec![]));
        assert_eq!(held_first(vec![1], is_unheld), (vec![1], vec![]));
    }
}
