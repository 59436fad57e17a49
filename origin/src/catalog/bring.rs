//! Bringing agents and services to what is defined, and taking out what no longer is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::task::spawn_blocking;
use weir_shared::descriptor::Descriptor;
use weir_shared::event::EventKind;
use weir_shared::name::{RepositoryName, ServiceName};
use weir_shared::process::config::ConfigError;

use super::definitions::{DefinedBy, Definitions};
use super::owner::{Earlier, Owner};
use super::permitted::permitted;
use super::written::Written;
use super::{NotMirrored, Snapshot};
use crate::config::ServiceConfig;
use crate::repository_agent::{self, Begin, Handle, MirrorFate};
use crate::service::Service;

impl Owner {
    /// Brings agents and services to what is defined. Readers see it all at once; what goes is retired after that, so that
    /// nobody is told of a deletion and is answered as if it had not been.
    pub(super) async fn bring_about(&mut self, mut earlier: Earlier) {
        let before = self.catalog.snapshot();
        let definitions = Definitions::of(&self.file, &self.api);
        let mut services = BTreeMap::new();
        for (name, defined) in definitions.services.iter() {
            let known = before.services.get(name).zip(before.definitions.services.get(name));
            let is_alike = |document: &Arc<ServiceConfig>| {
                published_alike(&before.definitions, &definitions, &document.repository)
            };
            let stays = known.is_some_and(|(_, was)| was.document == defined.document)
                && defined.document.taken().is_none_or(is_alike);
            let known = known.map(|(service, _)| service);
            match service(name, &defined.document, known, stays, earlier.current.remove(name)) {
                Ok(Some(service)) => {
                    if let Some(since) = earlier.pins.remove(name) {
                        service.pinned(since);
                    }
                    if let Some(refused) = defined.document.refused() {
                        service.fell_ill("document", refused.reason.clone(), SystemTime::now());
                    }
                    services.insert(name.clone(), service);
                }
                // It is shown with its document.
                Ok(None) => {}
                Err(error) => tracing::error!(service = %name, %error, "the service cannot be served"),
            }
        }
        if before.services.values().any(|service| service.is_withdrawn()) {
            // Whoever is answered that a service is another one now sees nothing more of what it was.
            let publisher = self.crew.publisher.clone();
            let ended = spawn_blocking(move || publisher.let_publications_end()).await;
            ended.unwrap_or_else(|error| tracing::error!(%error, "publications were not waited for"));
        }
        let agents = self.bring_agents(&definitions, &before, &services);
        let without_agent = |service: &&Arc<Service>| !service.is_refused && !agents.contains_key(&service.repository);
        for service in services.values().filter(without_agent) {
            let repository = &service.repository;
            let reason = self.refused.get(repository).map(|not_mirrored| not_mirrored.reason.clone());
            let reason = reason.unwrap_or_else(|| format!("there is no repository `{repository}` (any more)"));
            service.fell_ill("resolve", reason, SystemTime::now());
        }
        self.count(&definitions);
        self.crew.census.replace(services.values().cloned().collect());
        let not_mirrored = self.refused.clone();
        self.catalog.replace(Snapshot { definitions, agents, not_mirrored, services: services.clone() });
        let gone = before.services.iter().filter(|(name, _)| !services.contains_key(*name));
        self.retire(gone.map(|(_, service)| service.clone()).collect()).await;
    }

    /// Stops the agents of repositories that are gone or changed, starts those of new ones, and hands each its services.
    fn bring_agents(
        &mut self,
        definitions: &Definitions,
        before: &Snapshot,
        services: &BTreeMap<ServiceName, Arc<Service>>,
    ) -> BTreeMap<RepositoryName, Handle> {
        let (mut wanted, mut refused) = (BTreeMap::new(), BTreeMap::new());
        for (name, defined) in definitions.repositories.iter() {
            let config = match &defined.document {
                Written::Taken(document) => {
                    permitted(defined.by, document, self.secrets_dir.as_deref()).map_err(|refusals| told(&refusals))
                }
                Written::Refused(refused) => Err(refused.reason.clone()),
            };
            match config {
                Ok(config) => drop(wanted.insert(name.clone(), config)),
                Err(why) => {
                    let reason = format!("repository `{name}` is not mirrored: {why}");
                    let known = self.refused.remove(name).filter(|known| known.reason == reason);
                    let not_mirrored = known.unwrap_or_else(|| {
                        tracing::warn!("{reason}");
                        NotMirrored { since: SystemTime::now(), reason }
                    });
                    refused.insert(name.clone(), not_mirrored);
                }
            }
        }
        self.refused = refused;
        let mut of: BTreeMap<&RepositoryName, Vec<Arc<Service>>> = BTreeMap::new();
        for service in services.values().filter(|service| !service.is_refused) {
            of.entry(&service.repository).or_default().push(service.clone());
        }
        let mut agents = BTreeMap::new();
        for (name, agent) in &before.agents {
            if wanted.get(name).is_some_and(|config| config.is_asked_as(&agent.config())) {
                agents.insert(name.clone(), agent.clone());
                continue;
            }
            let by_operators = !self.file.repositories.contains_key(name)
                && !definitions.repositories.contains_key(name)
                && before.definitions.repositories.get(name).is_some_and(|was| was.by == DefinedBy::Api);
            // One that left the file may have been mistyped: a name for a day must not cost a clone.
            let fate = if by_operators { MirrorFate::Removed } else { MirrorFate::Kept };
            self.leaving.insert(name.clone(), agent.stop(fate));
            if !wanted.contains_key(name) {
                self.forget_when_gone(name.clone(), agent);
            }
        }
        self.leaving.retain(|_, gone| !gone.has_come());
        let together = wanted.keys().filter(|name| !agents.contains_key(*name)).count();
        for (name, config) in wanted {
            let own = of.remove(&name).unwrap_or_default();
            if let Some(agent) = agents.get(&name) {
                agent.reconfigure(config);
                agent.publish(own);
                continue;
            }
            let known = before.agents.get(&name).map(|agent| agent.leaves_to(&config)).unwrap_or_default();
            let begin = Begin { together, after: self.leaving.remove(&name), before: known };
            agents.insert(name, repository_agent::start(config, own, &self.crew, begin, &self.drain));
        }
        agents
    }

    /// The labels of a repository that is gone are not kept for good.
    fn forget_when_gone(&self, name: RepositoryName, agent: &Handle) {
        let (gone, catalog, metrics) = (agent.gone(), self.catalog.clone(), self.crew.metrics.clone());
        let begun = self.drain.clone();
        self.drain.spawn(async move {
            tokio::select! {
                () = begun.begun() => return,
                () = gone.wait() => {}
            }
            if catalog.repository(&name).is_none() {
                metrics.forget_repository(name.as_str());
            }
        });
    }

    async fn retire(&self, gone: Arc<[Arc<Service>]>) {
        if gone.is_empty() {
            return;
        }
        let (publisher, retiring) = (self.crew.publisher.clone(), gone.clone());
        let outcome = spawn_blocking(move || publisher.retire(&retiring, SystemTime::now())).await;
        let outcome =
            outcome.map_err(|error| error.to_string()).and_then(|done| done.map_err(|error| error.to_string()));
        if let Err(error) = &outcome {
            tracing::error!(
                error,
                services = gone.len(),
                "deleted services are retired as soon as that can be written"
            );
        }
        for service in gone.iter() {
            let name = &service.name;
            let generation = match &outcome {
                Ok(retired) => retired.get(name).copied(),
                Err(_) => service.generation().map(|(_, generation)| generation),
            };
            tracing::info!(service = %name, generation, "the service is deleted");
            if let Some(generation) = generation {
                self.catalog.retire(name.clone(), generation);
                self.log.append(EventKind::Tombstone { service: name.clone(), generation });
            }
        }
        self.crew.published.notify_one();
    }
}

/// What operators may not name, in a line.
fn told(refusals: &[(&'static str, String)]) -> String {
    let told: Vec<_> = refusals.iter().map(|(field, why)| format!("`{field}`: {why}")).collect();
    told.join("; ")
}

/// Whether what is published of a repository comes from where it came from, by the same policy.
fn published_alike(before: &Definitions, now: &Definitions, repository: &RepositoryName) -> bool {
    let defined = before.repositories.get(repository).zip(now.repositories.get(repository));
    defined.is_some_and(|(before, now)| {
        let is_asked_alike = || {
            let (was, is) = before.document.taken().zip(now.document.taken())?;
            Some(before.by == now.by && was.verify == is.verify && is.is_asked_as(was))
        };
        before == now || is_asked_alike().unwrap_or(false)
    })
}

/// The service of a document: the one that is known when it stays, or one that goes on from there. `None`: the document is
/// refused, and nothing says of which repository it is, so that nothing can have been published of it.
fn service(
    name: &ServiceName,
    document: &Written<ServiceConfig>,
    known: Option<&Arc<Service>>,
    stays: bool,
    published: Option<Descriptor>,
) -> Result<Option<Arc<Service>>, ConfigError> {
    if let Some(service) = known.filter(|_| stays) {
        return Ok(Some(service.clone()));
    }
    let new = match document {
        Written::Taken(document) => Service::new(document, published)?,
        Written::Refused(refused) => {
            let was_of = || Some(published.as_ref()?.publication().repository.clone());
            let was_of = refused.repository().or_else(was_of).or_else(|| Some(known?.repository.clone()));
            let Some(repository) = was_of else { return Ok(None) };
            Service::refused(name.clone(), repository, published)?
        }
    };
    Ok(Some(Arc::new(match known {
        None => new,
        Some(known) => new.going_on(known),
    })))
}
