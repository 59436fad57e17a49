//! The one task that changes the catalogue: it decides, makes the change durable, and brings agents and services to it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::event::EventKind;
use weir_shared::name::{RepositoryName, ServiceName};
use weir_shared::process::shutdown::Drain;

use super::definitions::{DefinedBy, Definitions, Documents};
use super::edit::{Edit, Outcome, Precondition, Refusal};
use super::permitted::permitted;
use super::store::{Store, Write};
use super::{Catalog, Snapshot};
use crate::config::{LimitsConfig, ServiceConfig};
use crate::event_log::EventLog;
use crate::repository_agent::{self, Begin, Crew, Gone, Handle, MirrorFate};
use crate::service::Service;

/// Changes that wait at the most.
const QUEUE: usize = 64;

/// Asks for changes of the catalogue. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Editor {
    orders: mpsc::Sender<Order>,
}

/// Why an edit was not made.
#[derive(Debug)]
pub(crate) enum EditError {
    Refused(Refusal),
    /// Too many changes wait already, or the origin ends.
    Busy,
    /// It could not be made durable; the log says why.
    Failed,
}

/// An edit that was made.
pub(crate) struct Made {
    pub(crate) outcome: Outcome,
    /// The catalogue as the edit left it: others may have changed it since.
    pub(crate) left: Arc<Snapshot>,
}

enum Order {
    Edit(Edit, Precondition, oneshot::Sender<Result<Made, EditError>>),
    /// What the configuration file says now.
    Reload(Documents, oneshot::Sender<()>),
}

impl Editor {
    /// Makes a change. It is made whole, or not at all, also when nobody waits for it any more.
    pub(crate) async fn edit(&self, edit: Edit, precondition: Precondition) -> Result<Made, EditError> {
        let (done, outcome) = oneshot::channel();
        self.orders.try_send(Order::Edit(edit, precondition, done)).map_err(|_| EditError::Busy)?;
        outcome.await.unwrap_or(Err(EditError::Busy))
    }

    /// Takes over what the configuration file says. False when the origin ends.
    pub(crate) async fn reload(&self, file: Documents) -> bool {
        let (done, taken) = oneshot::channel();
        self.orders.send(Order::Reload(file, done)).await.is_ok() && taken.await.is_ok()
    }
}

/// What was published before the start.
#[derive(Default)]
pub(crate) struct Earlier {
    pub(crate) current: HashMap<ServiceName, Descriptor>,
    /// The services that are pinned, each since when.
    pub(crate) pins: HashMap<ServiceName, SystemTime>,
    /// The services that are not defined any more since this start, each with its last generation.
    pub(crate) retired: Vec<(ServiceName, Generation)>,
}

/// What the owner works with.
pub(crate) struct Estate {
    /// What the file says.
    pub(crate) file: Documents,
    /// What operators said, as it is stored.
    pub(crate) api: Documents,
    pub(crate) store: Store,
    pub(crate) secrets_dir: Option<PathBuf>,
    pub(crate) limits: LimitsConfig,
    pub(crate) crew: Crew,
    pub(crate) log: Arc<EventLog>,
}

struct Owner {
    file: Documents,
    api: Documents,
    store: Arc<Store>,
    secrets_dir: Option<PathBuf>,
    limits: LimitsConfig,
    crew: Crew,
    log: Arc<EventLog>,
    catalog: Arc<Catalog>,
    /// The agents that were stopped and may not have ended.
    leaving: BTreeMap<RepositoryName, Gone>,
    /// Why repositories are not mirrored, as it was said last.
    refused: BTreeMap<RepositoryName, String>,
    drain: Drain,
}

/// Brings up everything that is defined, and changes it from then on until the drain.
pub(crate) async fn begin(estate: Estate, mut earlier: Earlier, drain: &Drain) -> (Arc<Catalog>, Editor) {
    let Estate { file, api, store, secrets_dir, limits, crew, log } = estate;
    let catalog = Arc::new(Catalog::new(Snapshot::default(), std::mem::take(&mut earlier.retired)));
    let metrics = crew.metrics.clone();
    let store = Arc::new(store);
    let mut owner = Owner {
        file,
        api,
        store,
        secrets_dir,
        limits,
        crew,
        log,
        catalog: catalog.clone(),
        leaving: BTreeMap::new(),
        refused: BTreeMap::new(),
        drain: drain.clone(),
    };
    for (kind, limit) in [("repository", owner.limits.max_repositories), ("service", owner.limits.max_services)] {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        owner.crew.metrics.catalog_limit.with_label_values(&[kind]).set(limit);
    }
    owner.tell_of_shadowed();
    owner.bring_about(earlier).await;
    let (orders, mut waiting) = mpsc::channel(QUEUE);
    let queue = orders.downgrade();
    let queued = move || queue.upgrade().map_or(0, |queue| queue.max_capacity() - queue.capacity());
    metrics.bounds.show("edits", QUEUE, queued);
    let begun = drain.clone();
    drain.spawn(async move {
        loop {
            let order = tokio::select! {
                () = begun.begun() => return,
                Some(order) = waiting.recv() => order,
            };
            // From now on what is added changes nothing about it.
            let _ = owner.catalog.ready();
            owner.carry_out(order).await;
        }
    });
    (catalog, Editor { orders })
}

impl Owner {
    async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Edit(edit, precondition, done) => {
                let result = self.edit(&edit, &precondition).await;
                let word = match &result {
                    Ok(outcome) => outcome.as_str(),
                    Err(EditError::Refused(_)) => "refused",
                    Err(EditError::Failed | EditError::Busy) => "failed",
                };
                self.crew.metrics.catalog_edits.with_label_values(&[edit.as_str(), word]).inc();
                tracing::info!(edit = edit.as_str(), name = edit.name(), result = word, "an operator's edit");
                // Whoever asked may have gone.
                let left = self.catalog.snapshot();
                let _ = done.send(result.map(|outcome| Made { outcome, left }));
            }
            Order::Reload(file, done) => {
                self.file = file;
                self.tell_of_shadowed();
                self.bring_about(Earlier::default()).await;
                let _ = done.send(());
            }
        }
    }

    async fn edit(&mut self, edit: &Edit, precondition: &Precondition) -> Result<Outcome, EditError> {
        let definitions = Definitions::of(&self.file, &self.api);
        let decided = edit.decide(precondition, &definitions, &self.limits).map_err(EditError::Refused)?;
        if decided.writes.is_empty() {
            return Ok(decided.outcome);
        }
        let (store, writes) = (self.store.clone(), decided.writes.clone());
        let written = spawn_blocking(move || store.write(&writes)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, "an operator's edit is not made");
                return Err(EditError::Failed);
            }
            Err(_) => return Err(EditError::Failed),
        }
        for write in decided.writes {
            match write {
                Write::PutRepository(document) => drop(self.api.repositories.insert(document.name.clone(), document)),
                Write::DeleteRepository(name) => drop(self.api.repositories.remove(&name)),
                Write::PutService(document) => drop(self.api.services.insert(document.name.clone(), document)),
                Write::DeleteService(name) => drop(self.api.services.remove(&name)),
            }
        }
        self.bring_about(Earlier::default()).await;
        Ok(decided.outcome)
    }

    /// Brings agents and services to what is defined. Readers see it all at once; what goes is retired after that, so that
    /// nobody is told of a deletion and is answered as if it had not been.
    async fn bring_about(&mut self, mut earlier: Earlier) {
        let before = self.catalog.snapshot();
        let definitions = Definitions::of(&self.file, &self.api);
        let mut services = BTreeMap::new();
        for (name, defined) in definitions.services.iter() {
            let known = before.services.get(name).zip(before.definitions.services.get(name));
            let stays = known.is_some_and(|(_, was)| was.document == defined.document)
                && published_alike(&before.definitions, &definitions, &defined.document.repository);
            let known = known.map(|(service, _)| service);
            match service(&defined.document, known, stays, earlier.current.remove(name)) {
                Ok(service) => {
                    if let Some(since) = earlier.pins.remove(name) {
                        service.pinned(since);
                    }
                    services.insert(name.clone(), service);
                }
                // What is put was checked; a newer version may have stored it.
                Err(error) => tracing::error!(service = %name, error, "the service cannot be served"),
            }
        }
        if before.services.values().any(|service| service.is_withdrawn()) {
            // Whoever is answered that a service is another one now sees nothing more of what it was.
            let publisher = self.crew.publisher.clone();
            let ended = spawn_blocking(move || publisher.let_publications_end()).await;
            ended.unwrap_or_else(|error| tracing::error!(%error, "publications were not waited for"));
        }
        let agents = self.bring_agents(&definitions, &before, &services);
        for service in services.values().filter(|service| !agents.contains_key(&service.repository)) {
            let repository = &service.repository;
            let reason = self.refused.get(repository).cloned();
            let reason = reason.unwrap_or_else(|| format!("there is no repository `{repository}` (any more)"));
            service.fell_ill("resolve", reason, SystemTime::now());
        }
        self.count(&definitions);
        self.crew.census.replace(services.values().cloned().collect());
        self.catalog.replace(Snapshot { definitions, agents, services: services.clone() });
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
            match permitted(defined, self.secrets_dir.as_deref()) {
                Ok(config) => drop(wanted.insert(name.clone(), config)),
                Err((field, why)) => {
                    let reason = format!("repository `{name}` is not mirrored: `{field}`: {why}");
                    if self.refused.get(name) != Some(&reason) {
                        tracing::warn!("{reason}");
                    }
                    refused.insert(name.clone(), reason);
                }
            }
        }
        self.refused = refused;
        let mut of: BTreeMap<&RepositoryName, Vec<Arc<Service>>> = BTreeMap::new();
        for service in services.values() {
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

    /// What operators defined under a name that the file has now is kept, and not used.
    fn tell_of_shadowed(&self) {
        for name in self.api.repositories.keys().filter(|name| self.file.repositories.contains_key(*name)) {
            tracing::warn!(repository = %name, "it stands in the file: what operators defined under this name is not used");
        }
        for name in self.api.services.keys().filter(|name| self.file.services.contains_key(*name)) {
            tracing::warn!(service = %name, "it stands in the file: what operators defined under this name is not used");
        }
    }

    fn count(&self, definitions: &Definitions) {
        for by in DefinedBy::ALL {
            let repositories = definitions.repositories.values().filter(|each| each.by == by).count();
            let services = definitions.services.values().filter(|each| each.by == by).count();
            for (kind, number) in [("repository", repositories), ("service", services)] {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                self.crew.metrics.catalog_objects.with_label_values(&[kind, by.as_str()]).set(number);
            }
        }
    }
}

/// Whether what is published of a repository comes from where it came from, by the same policy.
fn published_alike(before: &Definitions, now: &Definitions, repository: &RepositoryName) -> bool {
    let defined = before.repositories.get(repository).zip(now.repositories.get(repository));
    defined.is_some_and(|(before, now)| {
        let (was, is) = (&before.document, &now.document);
        before == now || (before.by == now.by && was.verify == is.verify && is.is_asked_as(was))
    })
}

/// The service of a document: the one that is known when it stays, or one that goes on from there.
fn service(
    document: &Arc<ServiceConfig>,
    known: Option<&Arc<Service>>,
    stays: bool,
    published: Option<Descriptor>,
) -> Result<Arc<Service>, String> {
    match known {
        Some(service) if stays => Ok(service.clone()),
        Some(service) => {
            let new = service.reconfigured(document).map_err(|error| error.to_string())?;
            service.withdraw();
            Ok(Arc::new(new))
        }
        None => Service::new(document, published).map(Arc::new).map_err(|error| error.to_string()),
    }
}
