//! The running steps of a repository's services: resolve refs, publish cached content, build and publish new content.
//!
//! It decides nothing: it starts steps, and returns their results.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio_util::task::AbortOnDropHandle;
use weir_protocol::name::ServiceName;
use weir_publish::{Cached, PublishError};
use weir_source::{Candidate, ResolvedServices, Service, ServiceFailure};

use super::job::JobPanicked;
use super::lfs::{LfsPolicy, LfsProgress, NeededObjects};
use super::pipeline::Pipeline;
use super::repository::Repository;
use super::threads::ended;

/// The result of publishing cached content, for each candidate.
type CachedResults = Result<Vec<Cached>, PublishError>;

/// A candidate with the result of its build. False: its service needs another content meanwhile.
type BuildEnd = (Candidate, Result<bool, ServiceFailure>);

/// The steps of a repository's services. Dropping it stops them.
pub(super) struct Steps {
    pub(super) pipeline: Pipeline,
    /// The services of `resolve_task`.
    resolving: Vec<Arc<Service>>,
    resolve_task: Option<AbortOnDropHandle<Result<ResolvedServices, ServiceFailure>>>,
    /// The candidates of the next `cached_task`.
    candidates: Vec<Candidate>,
    /// The candidates of `cached_task`.
    cached_candidates: Vec<Candidate>,
    /// Publishes candidates whose content is cached.
    cached_task: Option<AbortOnDropHandle<CachedResults>>,
    build_tasks: JoinSet<BuildEnd>,
    builds: HashMap<ServiceName, RunningBuild>,
    lfs_progress: (mpsc::UnboundedSender<Box<LfsProgress>>, mpsc::UnboundedReceiver<Box<LfsProgress>>),
}

/// The result of a step.
pub(super) enum StepEnd {
    /// The refs of services were resolved.
    Resolved(ResolvedServices),
    /// Candidates were published, or need a build.
    Cached(Vec<(Candidate, Result<Cached, ServiceFailure>)>),
    /// A build ended.
    Built(BuildEnd),
    /// A build started or ended to fetch LFS objects.
    Lfs(LfsProgress),
}

/// A running build. Dropping it stops it.
struct RunningBuild {
    candidate: Candidate,
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

impl Steps {
    pub(super) fn new(pipeline: Pipeline) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a running build sends two")]
        let lfs_progress = mpsc::unbounded_channel();
        Self {
            pipeline,
            resolving: Vec::new(),
            resolve_task: None,
            candidates: Vec::new(),
            cached_candidates: Vec::new(),
            cached_task: None,
            build_tasks: JoinSet::new(),
            builds: HashMap::new(),
            lfs_progress,
        }
    }

    /// Waits for the end of a step.
    pub(super) async fn next(&mut self) -> StepEnd {
        loop {
            tokio::select! {
                resolved = ended(&mut self.resolve_task) => {
                    self.resolve_task = None;
                    return StepEnd::Resolved(self.resolved(resolved));
                }
                results = ended(&mut self.cached_task) => {
                    self.cached_task = None;
                    return StepEnd::Cached(self.cached(results));
                }
                Some(end) = self.build_tasks.join_next() => {
                    if let Some(end) = self.built(end) {
                        return StepEnd::Built(end);
                    }
                }
                Some(progress) = self.lfs_progress.1.recv() => {
                    if self.builds.contains_key(&progress.service) {
                        return StepEnd::Lfs(*progress);
                    }
                }
            }
        }
    }

    pub(super) fn is_resolving(&self) -> bool {
        self.resolve_task.is_some()
    }

    /// Whether cached content is being published, or it is not known yet whether it is cached.
    pub(super) fn is_publishing_cached(&self) -> bool {
        self.resolve_task.is_some() || self.cached_task.is_some()
    }

    /// The candidates that are being published.
    pub(super) fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        let built = self.builds.values().map(|build| &build.candidate);
        built.chain(&self.candidates).chain(&self.cached_candidates)
    }

    /// Starts to resolve the refs of services. No other ones are being resolved.
    pub(super) fn start_resolve(&mut self, services: Vec<Arc<Service>>) {
        self.resolving = services;
        let (pipeline, services) = (self.pipeline.clone(), self.resolving.clone());
        self.resolve_task =
            Some(self.pipeline.repository.threads.spawn(async move { pipeline.resolve(services).await }));
    }

    /// `None`: the task panicked.
    fn resolved(&mut self, resolved: Option<Result<ResolvedServices, ServiceFailure>>) -> ResolvedServices {
        let resolving = std::mem::take(&mut self.resolving);
        let panicked = || Err(ServiceFailure::transient("resolve", JobPanicked.to_string()));
        resolved
            .unwrap_or_else(panicked)
            .unwrap_or_else(|failure| resolving.into_iter().map(|service| (service, Err(failure.clone()))).collect())
    }

    /// The content of a candidate is published if it is cached.
    pub(super) fn add_candidate(&mut self, candidate: Candidate) {
        self.candidates.push(candidate);
    }

    /// Starts to publish the candidates whose content is cached.
    pub(super) fn start_publish_cached(&mut self) {
        if self.cached_task.is_some() || self.candidates.is_empty() {
            return;
        }
        let Repository { name, context, .. } = &*self.pipeline.repository;
        let candidates = std::mem::take(&mut self.candidates);
        (self.cached_candidates, self.candidates) = match &context.names {
            Some(_) => {
                let unheld = context.publisher.repositories.unheld(name, &names_of(&candidates));
                held_first(candidates, |each| unheld.contains(&each.service.name))
            }
            None => (candidates, Vec::new()),
        };
        let (repository, candidates) = (self.pipeline.repository.clone(), self.cached_candidates.clone());
        let publish = async move { publish_cached(&repository, candidates).await };
        self.cached_task = Some(self.pipeline.repository.threads.spawn(publish));
    }

    /// `None`: the task panicked.
    fn cached(&mut self, results: Option<CachedResults>) -> Vec<(Candidate, Result<Cached, ServiceFailure>)> {
        let candidates = std::mem::take(&mut self.cached_candidates);
        let failure = match results {
            Some(Ok(results)) => return candidates.into_iter().zip(results.into_iter().map(Ok)).collect(),
            Some(Err(error)) => error.into(),
            None => ServiceFailure::transient("store", JobPanicked.to_string()),
        };
        candidates.into_iter().map(|candidate| (candidate, Err(failure.clone()))).collect()
    }

    /// Starts a build. `may_fetch`: it may query the upstream for LFS objects.
    pub(super) fn start_build(&mut self, candidate: Candidate, may_fetch: bool) {
        let name = candidate.service.name.clone();
        let needed_objects = NeededObjects::default();
        let progress = Some(self.lfs_progress.0.clone());
        let policy = LfsPolicy { may_fetch, progress, needed_objects: needed_objects.clone() };
        let (pipeline, built) = (self.pipeline.clone(), candidate.clone());
        let task = self.build_tasks.spawn(self.pipeline.repository.threads.track(async move {
            let result = pipeline.build_and_publish(&built, &policy).await;
            (built, result)
        }));
        self.builds.insert(name, RunningBuild { candidate, task, needed_objects, restricting: None });
    }

    /// Stops the build of a removed service.
    pub(super) fn stop_build(&mut self, service: &ServiceName) {
        self.builds.remove(service);
    }

    /// Restricts the LFS fetch of a running build to objects that a newer candidate needs too.
    pub(super) fn restrict_fetch(&mut self, candidate: Candidate) {
        let Some(build) = self.builds.get_mut(&candidate.service.name) else { return };
        let (lfs, needed_objects) = (self.pipeline.lfs.clone(), build.needed_objects.clone());
        build.restricting = Some(self.pipeline.repository.threads.spawn(async move {
            // A failure appears again when the service is resolved after the build.
            let files = lfs.missing_files(&candidate.service, &candidate.revision).await.unwrap_or_default();
            needed_objects.send_replace(Some(files.into_iter().map(|file| file.pointer.oid).collect()));
        }));
    }

    /// `None`: the build was stopped.
    fn built(&mut self, end: Result<BuildEnd, JoinError>) -> Option<BuildEnd> {
        let (candidate, result) = match end {
            Ok(end) => end,
            Err(error) => {
                let failed = self.builds.values().find(|build| build.task.id() == error.id());
                let panicked = failed.filter(|_| error.is_panic())?;
                (panicked.candidate.clone(), Err(ServiceFailure::transient("build", JobPanicked.to_string())))
            }
        };
        // A service that was redefined may have another build by now.
        let build = self.builds.get(&candidate.service.name)?;
        if !Arc::ptr_eq(&build.candidate.service, &candidate.service) {
            return None;
        }
        self.builds.remove(&candidate.service.name);
        Some((candidate, result))
    }
}

/// Publishes candidates whose content is cached, but for services whose name another repository has.
async fn publish_cached(repository: &Repository, candidates: Vec<Candidate>) -> CachedResults {
    let Repository { name, context, .. } = repository;
    let refused = match &context.names {
        Some(names) => names.acquire(name, &names_of(&candidates)).await,
        None => BTreeMap::new(),
    };
    let (held_elsewhere, held): (Vec<_>, Vec<_>) =
        candidates.iter().cloned().partition(|each| refused.contains_key(&each.service.name));
    let cached = context.publisher.publish_cached(name, &held, SystemTime::now()).await?;
    let refused = held_elsewhere.into_iter().map(|each| {
        let error = refused[&each.service.name].clone();
        (each.service.name.clone(), Cached::Refused(error))
    });
    let mut results: BTreeMap<ServiceName, Cached> =
        held.into_iter().map(|each| each.service.name.clone()).zip(cached).chain(refused).collect();
    let result = |each: &Candidate| results.remove(&each.service.name).unwrap_or(Cached::NeedsBuild);
    Ok(candidates.iter().map(result).collect())
}

fn names_of(candidates: &[Candidate]) -> Vec<ServiceName> {
    candidates.iter().map(|each| each.service.name.clone()).collect()
}

/// What is published now, and what after that. For what is unheld the name is taken first: the others do not wait for that.
fn held_first<T>(candidates: Vec<T>, is_unheld: impl Fn(&T) -> bool) -> (Vec<T>, Vec<T>) {
    let (unheld, held): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_unheld);
    if held.is_empty() { (unheld, held) } else { (held, unheld) }
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
