//! The one task that changes the catalogue: it decides, makes the change durable, and brings agents and services to it
//! (`reconcile`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use weir_shared::event::EventKind;
use weir_shared::name::{RepositoryName, ServiceName};
use weir_shared::process::shutdown::Drain;

use super::definitions::Documents;
use super::edit::{Edit, Outcome, Precondition, Refusal, Write};
use super::reconcile::Touched;
use super::storing::Plan;
use super::{Catalog, Snapshot};
use crate::config::LimitsConfig;
use crate::publish::{PublishError, Started, StoredDefinitions};
use crate::repository_agent::{Context, Gone};
use crate::service::Service;

/// Changes that wait at the most.
const QUEUE: usize = 64;

/// How often a write is tried again of which it is not known whether it was committed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
    /// It could not be made durable, and may have been committed all the same: why.
    Failed(String),
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

/// What the owner works with.
pub(crate) struct Dependencies {
    /// What the file says.
    pub(crate) file: Documents,
    /// What operators said, as it is stored.
    pub(crate) stored: StoredDefinitions,
    pub(crate) secrets_dir: Option<PathBuf>,
    pub(crate) limits: LimitsConfig,
    pub(crate) context: Context,
}

pub(super) struct Owner {
    pub(super) file: Documents,
    pub(super) api: Documents,
    /// An edit of which it is not known whether it was committed.
    unsettled: Option<(Plan, Vec<Write>)>,
    /// What is left to be done after services have moved.
    cleanups: Vec<Plan>,
    pub(super) secrets_dir: Option<PathBuf>,
    pub(super) limits: LimitsConfig,
    pub(super) context: Context,
    pub(super) catalog: Arc<Catalog>,
    /// The services of each repository that its agent publishes.
    pub(super) assigned: BTreeMap<RepositoryName, BTreeMap<ServiceName, Arc<Service>>>,
    /// The agents that were stopped and may not have ended.
    pub(super) leaving: BTreeMap<RepositoryName, Gone>,
    pub(super) drain: Drain,
}

/// Brings up everything that is defined, and changes it from then on until the drain.
pub(crate) async fn begin(dependencies: Dependencies, mut started: Started, drain: &Drain) -> (Arc<Catalog>, Editor) {
    let Dependencies { file, stored, secrets_dir, limits, context } = dependencies;
    let begins = Snapshot { operators_have_defined: stored.had_any, ..Snapshot::default() };
    let catalog = Arc::new(Catalog::new(begins, std::mem::take(&mut started.retired)));
    let metrics = context.metrics.clone();
    let mut owner = Owner {
        file,
        api: Documents::stored(&stored),
        unsettled: None,
        cleanups: stored.outdated.into_iter().map(|(repository, service)| Plan::removal(repository, service)).collect(),
        secrets_dir,
        limits,
        context,
        catalog: catalog.clone(),
        assigned: BTreeMap::new(),
        leaving: BTreeMap::new(),
        drain: drain.clone(),
    };
    for (kind, limit) in [("repository", owner.limits.max_repositories), ("service", owner.limits.max_services)] {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        owner.context.metrics.catalog_limit.with_label_values(&[kind]).set(limit);
    }
    owner.log_shadowed();
    for (object, reason) in owner.api.refused() {
        tracing::error!(object, reason, "its stored document is refused: put another one, or delete it");
    }
    let touched = Touched::all(&owner.file, &owner.api);
    owner.reconcile(touched, started).await;
    owner.log_left_alone();
    let (orders, mut waiting) = mpsc::channel(QUEUE);
    let queue = orders.downgrade();
    let queued = move || queue.upgrade().map_or(0, |queue| queue.max_capacity() - queue.capacity());
    metrics.bounds.show("edits", QUEUE, queued);
    let (begun, publisher) = (drain.clone(), owner.context.publisher.clone());
    drain.spawn(async move {
        loop {
            let has_rest =
                owner.unsettled.is_some() || !owner.cleanups.is_empty() || !publisher.to_take_over().is_empty();
            let order = tokio::select! {
                () = begun.begun() => return,
                Some(order) = waiting.recv() => order,
                () = publisher.read_again() => {
                    owner.take_over().await;
                    continue;
                }
                () = sleep(RETRY_AFTER), if has_rest => {
                    if owner.settle().await.is_ok() {
                        owner.clean_up().await;
                    }
                    owner.take_over().await;
                    continue;
                }
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
                    Err(EditError::Failed(_) | EditError::Busy) => "failed",
                };
                self.context.metrics.catalog_edits.with_label_values(&[edit.as_str(), word]).inc();
                // Whoever asked may have gone.
                let left = self.catalog.snapshot();
                let _ = done.send(result.map(|outcome| Made { outcome, left }));
                self.clean_up().await;
            }
            Order::Reload(file, done) => {
                let mut touched = Touched::all(&self.file, &self.api);
                touched.extend(Touched::all(&file, &Documents::default()));
                self.file = file;
                self.log_shadowed();
                self.reconcile(touched, Started::default()).await;
                self.log_left_alone();
                let _ = done.send(());
            }
        }
    }

    async fn edit(&mut self, edit: &Edit, precondition: &Precondition) -> Result<Outcome, EditError> {
        self.settle().await?;
        self.clean_up().await;
        let before = self.catalog.snapshot();
        let decided = edit.decide(precondition, &before.definitions, &self.limits).map_err(EditError::Refused)?;
        if decided.writes.is_empty() {
            return Ok(decided.outcome);
        }
        let comes_back = |write: &Write| {
            let Write::DeleteService(name) = write else { return false };
            self.cleanups.iter().any(|plan| plan.removes(name))
        };
        if decided.writes.iter().any(comes_back) {
            let reason =
                "the service was moved, and is stored still where it was: a restart would bring it back from there";
            return Err(EditError::Failed(reason.to_owned()));
        }
        let plan = Plan::of(&decided.writes, &self.api);
        self.make(plan, decided.writes, false).await?;
        Ok(decided.outcome)
    }

    /// Makes an edit durable whose outcome is not known.
    async fn settle(&mut self) -> Result<(), EditError> {
        let Some((plan, writes)) = self.unsettled.take() else { return Ok(()) };
        self.make(plan, writes, true).await
    }

    /// Makes an edit durable, and carries it out. One that was certainly not made is forgotten.
    async fn make(&mut self, plan: Plan, writes: Vec<Write>, may_be_made: bool) -> Result<(), EditError> {
        if let Some((repository, change)) = &plan.change
            && let Err(error) = self.context.publisher.define(repository, change.clone()).await
        {
            tracing::error!(%repository, %error, "an operator's edit failed");
            let reason = error.to_string();
            // A suspended repository has settled it, and is read again.
            let is_settled = !may_be_made || matches!(error, PublishError::Suspended { .. });
            if matches!(error, PublishError::UnknownOutcome(_)) || !is_settled {
                self.unsettled = Some((plan, writes));
            }
            return Err(EditError::Failed(reason));
        }
        let touched = Touched::by(&writes);
        writes.iter().for_each(|write| self.api.apply(write));
        self.reconcile(touched, Started::default()).await;
        if plan.cleanup.is_some() {
            self.cleanups.push(plan);
        }
        Ok(())
    }

    /// Takes services that moved out of where they were. What fails is tried again; until then the newer document holds.
    async fn clean_up(&mut self) {
        for plan in std::mem::take(&mut self.cleanups) {
            let Some((repository, change)) = plan.cleanup.clone() else { continue };
            // It may have moved back.
            let is_back = |name: &ServiceName| {
                self.api.services.get(name).is_some_and(|document| *document.repository() == repository)
            };
            if change.services.iter().any(|(name, _)| is_back(name)) {
                continue;
            }
            if let Err(error) = self.context.publisher.define(&repository, change).await {
                tracing::warn!(%repository, %error, "a service that moved is stored twice; it is tried again");
                self.cleanups.push(plan);
            }
        }
    }

    /// Takes over what operators defined in repositories that could not be read before, or were damaged.
    async fn take_over(&mut self) {
        let publisher = self.context.publisher.clone();
        for repository in publisher.to_take_over() {
            match publisher.definitions_read_again(&repository).await {
                Ok((stored, published)) => {
                    self.take_over_one(repository.name(), &Documents::stored(&stored), published).await;
                    publisher.taken_over(&repository);
                }
                Err(error) => tracing::warn!(repository = %repository.name(), %error, "it is read again soon"),
            }
        }
    }

    async fn take_over_one(&mut self, repository: &RepositoryName, stored: &Documents, published: Started) {
        let is_elsewhere = |name: &ServiceName| {
            self.api.services.get(name).is_some_and(|document| document.repository() != repository)
        };
        // One that is in two repositories, because it was being moved, stays where the catalogue has it until a restart.
        let services: Vec<_> = stored.services.iter().filter(|(name, _)| !is_elsewhere(name)).collect();
        for (name, document) in services {
            self.api.services.insert_mut(name.clone(), document.clone());
        }
        for (name, document) in &stored.repositories {
            self.api.repositories.insert_mut(name.clone(), document.clone());
        }
        let (repositories, services) = (stored.repositories.size(), stored.services.size());
        tracing::info!(%repository, repositories, services, "what operators defined in it was read again");
        self.reconcile(Touched::all(stored, &Documents::default()), Started::default()).await;
        let snapshot = self.catalog.snapshot();
        for (name, descriptor) in published.current {
            let Some(service) = snapshot.services.get(&name) else { continue };
            if let Some(since) = published.pins.get(&name).filter(|_| !service.is_pinned()) {
                service.pinned(*since);
            }
            service.show(descriptor, |shown| self.context.log.append(EventKind::Descriptor(shown.bytes().clone())));
        }
    }

    /// What operators defined under a name that the file has now stays stored, and is not used.
    fn log_shadowed(&self) {
        for name in self.api.repositories.keys().filter(|name| self.file.repositories.contains_key(*name)) {
            tracing::warn!(repository = %name, "it stands in the file: what operators defined under this name is not used");
        }
        for name in self.api.services.keys().filter(|name| self.file.services.contains_key(*name)) {
            tracing::warn!(service = %name, "it stands in the file: what operators defined under this name is not used");
        }
    }

    /// Who takes a repository out of the file may not know who else uses it.
    fn log_left_alone(&self) {
        for (service, repository) in self.catalog.snapshot().definitions.left_alone() {
            tracing::warn!(%service, %repository, "there is no such repository (any more): the service stays at what it is at");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Bounds;
    use crate::config::{RepositoryConfig, RetentionConfig, ServiceConfig, StoreConfig, UpstreamsConfig};
    use crate::data_dir::DataDir;
    use crate::event_log::EventLog;
    use crate::metrics::Metrics;
    use crate::publish::{Options, PublishMetrics, Publisher};
    use crate::store::{FaultyEngine, FaultyStore, Objects, Records, StoreMetrics, WriteFault};
    use std::path::Path;

    /// A catalogue of what is stored, whose writes fail as the engine says.
    async fn begun(
        dir: &Path,
        faults: impl IntoIterator<Item = WriteFault>,
        drain: &Drain,
    ) -> (Arc<Catalog>, Editor, Documents) {
        let metrics = StoreMetrics::register(&prometheus::Registry::new()).unwrap();
        let objects = Objects::open(&StoreConfig::default(), dir, metrics, &Bounds::default()).await.unwrap();
        begun_over(dir, objects, faults, drain).await
    }

    /// The same over these objects.
    async fn begun_over(
        dir: &Path,
        objects: Objects,
        faults: impl IntoIterator<Item = WriteFault>,
        drain: &Drain,
    ) -> (Arc<Catalog>, Editor, Documents) {
        let (data_dir, limits, registry) =
            (DataDir::open(dir).unwrap().0, LimitsConfig::default(), prometheus::Registry::new());
        let (metrics, store_metrics) =
            (Metrics::register(&registry).unwrap(), StoreMetrics::register(&registry).unwrap());
        let engine = FaultyEngine::local(&dir.join("records"));
        let log = Arc::new(EventLog::new(&limits, metrics.clone()));
        let options = Options {
            generation_floor: 0,
            retention: RetentionConfig::default(),
            signer: Arc::default(),
            events: log.clone(),
            metrics: PublishMetrics::register(&registry).unwrap(),
        };
        let records = Records::over(engine.clone(), store_metrics);
        let (publisher, stored) = Publisher::open(objects, records, data_dir.clone(), options).await.unwrap();
        engine.fail_writes(faults);
        let context = Context::new(publisher, data_dir, log, metrics, &limits, &UpstreamsConfig::default());
        let api = Documents::stored(&stored);
        let file = Documents::default();
        let dependencies = Dependencies { file, stored, secrets_dir: None, limits, context };
        let (catalog, editor) = begin(dependencies, Started::default(), drain).await;
        (catalog, editor, api)
    }

    /// What a new process finds stored.
    async fn stored(dir: &Path) -> Documents {
        let drain = Drain::new();
        let (_, editor, api) = begun(dir, [], &drain).await;
        drop(editor);
        assert!(drain.finish(Duration::from_secs(60)).await);
        api
    }

    /// A repository that may not be mirrored: nobody is asked.
    fn put_repository(name: &str) -> Edit {
        Edit::PutRepository(RepositoryConfig::new(name.parse().unwrap(), "file:///shop").into())
    }

    fn put_service(name: &str, repository: &str) -> Edit {
        Edit::PutService(ServiceConfig::new(name.parse().unwrap(), repository.parse().unwrap()).into())
    }

    async fn edit(editor: &Editor, edit: Edit) -> Result<Outcome, EditError> {
        editor.edit(edit, Precondition::default()).await.map(|made| made.outcome)
    }

    #[tokio::test(start_paused = true)]
    async fn an_edit_of_unknown_outcome_is_carried_out_before_any_other() {
        for fault in [WriteFault::Lost, WriteFault::Unconfirmed] {
            let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
            let (catalog, editor, _) = begun(dir.path(), [fault], &drain).await;
            let made = edit(&editor, put_repository("shop")).await;
            // It may be settled at once, by reading back; what is answered as made is there, and what is not follows.
            let is_there = || catalog.snapshot().definitions.repositories.contains_key("shop");
            assert!(made.is_err() || is_there(), "{fault:?}");
            let again = edit(&editor, put_repository("shop")).await.unwrap();
            assert!(matches!(again, Outcome::Unchanged | Outcome::Created) && is_there(), "{fault:?}");
            drop(editor);
            assert!(drain.finish(Duration::from_secs(60)).await);
            drop(catalog);
            assert!(stored(dir.path()).await.repositories.contains_key("shop"), "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_edit_that_was_committed_is_carried_out_also_when_it_cannot_be_read_back_at_once() {
        let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
        let (_, editor, _) = begun(dir.path(), [], &drain).await;
        for change in [put_repository("shop"), put_service("one", "shop")] {
            edit(&editor, change).await.unwrap();
        }
        drop(editor);
        assert!(drain.finish(Duration::from_secs(60)).await);

        let drain = Drain::new();
        let local = object_store::local::LocalFileSystem::new_with_prefix(dir.path().join("objects")).unwrap();
        let store = FaultyStore::over(Arc::new(local));
        let metrics = StoreMetrics::register(&prometheus::Registry::new()).unwrap();
        let objects = Objects::over(store.clone(), metrics);
        let (catalog, editor, _) = begun_over(dir.path(), objects, [WriteFault::Lost], &drain).await;
        assert!(edit(&editor, put_service("two", "shop")).await.is_err());
        store.fail_gets(true);
        assert!(edit(&editor, put_service("three", "shop")).await.is_err());
        store.fail_gets(false);
        edit(&editor, put_service("three", "shop")).await.unwrap();
        assert!(catalog.snapshot().services.contains_key("two"), "it is stored");
        drop(editor);
        assert!(drain.finish(Duration::from_secs(60)).await);
    }

    #[tokio::test]
    async fn a_service_that_moves_is_stored_where_it_went_and_nowhere_else() {
        let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
        let (_, editor, _) = begun(dir.path(), [], &drain).await;
        for change in [put_repository("shop"), put_repository("blog"), put_service("one", "shop")] {
            assert_eq!(edit(&editor, change).await.unwrap(), Outcome::Created);
        }
        assert_eq!(edit(&editor, put_service("one", "blog")).await.unwrap(), Outcome::Changed);
        // Its repository can go without it: the clean-up came before this edit.
        let gone = Edit::DeleteRepository { name: "shop".parse().unwrap(), cascade: false };
        assert_eq!(edit(&editor, gone).await.unwrap(), Outcome::Deleted);
        drop(editor);
        assert!(drain.finish(Duration::from_secs(60)).await);
        let stored = stored(dir.path()).await;
        assert_eq!(stored.services.get("one").unwrap().repository().as_str(), "blog");
        assert_eq!(stored.repositories.size(), 1);
    }

    #[tokio::test]
    async fn a_service_is_not_deleted_while_it_is_stored_where_it_was_before() {
        let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
        let (catalog, editor, _) = begun(dir.path(), [], &drain).await;
        for change in [put_repository("shop"), put_repository("blog"), put_service("one", "shop")] {
            edit(&editor, change).await.unwrap();
        }
        for object in std::fs::read_dir(dir.path().join("objects/shop/private")).unwrap() {
            std::fs::write(object.unwrap().path(), "damaged").unwrap();
        }
        edit(&editor, put_service("one", "blog")).await.unwrap();
        let deleted = edit(&editor, Edit::DeleteService("one".parse().unwrap())).await;
        assert!(matches!(deleted, Err(EditError::Failed(_))), "{deleted:?}");
        assert!(catalog.snapshot().services.contains_key("one"));
        drop(editor);
        assert!(drain.finish(Duration::from_secs(60)).await);
    }

    #[tokio::test]
    async fn what_operators_defined_in_what_can_be_read_again_is_there_without_a_restart() {
        let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
        let (_, editor, _) = begun(dir.path(), [], &drain).await;
        for change in [put_repository("shop"), put_service("one", "shop"), put_service("two", "shop")] {
            edit(&editor, change).await.unwrap();
        }
        drop(editor);
        assert!(drain.finish(Duration::from_secs(60)).await);

        let drain = Drain::new();
        let local = object_store::local::LocalFileSystem::new_with_prefix(dir.path().join("objects")).unwrap();
        let store = FaultyStore::over(Arc::new(local));
        store.fail_gets(true);
        let metrics = StoreMetrics::register(&prometheus::Registry::new()).unwrap();
        let objects = Objects::over(store.clone(), metrics);
        let (catalog, editor, _) = begun_over(dir.path(), objects, [], &drain).await;
        assert_eq!(catalog.snapshot().services.size(), 0);
        store.fail_gets(false);
        // An edit has it read again, and what it says holds.
        let mut changed = ServiceConfig::new("one".parse().unwrap(), "shop".parse().unwrap());
        changed.folder = "changed".parse().unwrap();
        edit(&editor, Edit::PutService(changed.into())).await.unwrap();
        let is_there = async {
            while !catalog.snapshot().services.contains_key("two") {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), is_there).await.unwrap();
        let snapshot = catalog.snapshot();
        let one = snapshot.definitions.services.get("one").unwrap().document.taken().unwrap().clone();
        assert_eq!(one.folder.to_string(), "changed");
        drop(editor);
        assert!(drain.finish(Duration::from_secs(60)).await);
    }

    #[tokio::test]
    async fn an_edit_leaves_everything_else_as_it_is() {
        let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
        let (catalog, editor, _) = begun(dir.path(), [], &drain).await;
        edit(&editor, put_repository("shop")).await.unwrap();
        for number in 0..20 {
            edit(&editor, put_service(&format!("service-{number}"), "shop")).await.unwrap();
        }
        let before = catalog.snapshot();
        edit(&editor, put_service("another", "shop")).await.unwrap();
        edit(&editor, Edit::DeleteService("service-7".parse().unwrap())).await.unwrap();
        let after = catalog.snapshot();
        assert_eq!(after.services.size(), 20);
        for (name, service) in before.services.iter().filter(|(name, _)| name.as_str() != "service-7") {
            assert!(Arc::ptr_eq(service, after.services.get(name).unwrap()), "{name}");
        }
        assert!(!after.services.contains_key("service-7") && before.services.contains_key("service-7"));
        drop(editor);
        assert!(drain.finish(Duration::from_secs(60)).await);
    }
}
