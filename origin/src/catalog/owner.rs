//! The one task that changes the catalogue: it decides, makes the change durable, and brings agents and services to it
//! (`bring`).

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::name::{RepositoryName, ServiceName};
use weir_shared::process::shutdown::Drain;

use super::definitions::{DefinedBy, Definitions, Documents};
use super::edit::{Edit, Outcome, Precondition, Refusal};
use super::store::{Store, Write};
use super::written::Written;
use super::{Catalog, NotMirrored, Snapshot};
use crate::config::LimitsConfig;
use crate::event_log::EventLog;
use crate::repository_agent::{Crew, Gone};

/// Changes that wait at the most.
const QUEUE: usize = 64;

/// How often what is stored is tried to be read after a write failed.
const READ_AGAIN: Duration = Duration::from_secs(1);

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
    /// It could not be made durable, and may have landed all the same: why.
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

pub(super) struct Owner {
    pub(super) file: Documents,
    pub(super) api: Documents,
    pub(super) store: Arc<Store>,
    /// A write failed that may have landed, and what is stored could not be read since.
    is_unsure: bool,
    pub(super) secrets_dir: Option<PathBuf>,
    pub(super) limits: LimitsConfig,
    pub(super) crew: Crew,
    pub(super) log: Arc<EventLog>,
    pub(super) catalog: Arc<Catalog>,
    /// The agents that were stopped and may not have ended.
    pub(super) leaving: BTreeMap<RepositoryName, Gone>,
    /// Why repositories are not mirrored, as it was said last.
    pub(super) refused: BTreeMap<RepositoryName, NotMirrored>,
    pub(super) drain: Drain,
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
        is_unsure: false,
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
    owner.tell_of_left_alone();
    for (object, reason) in owner.api.refused() {
        tracing::error!(object, reason, "its stored document is refused: put it anew, or delete it");
    }
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
                () = sleep(READ_AGAIN), if owner.is_unsure => {
                    owner.be_sure().await;
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
                self.crew.metrics.catalog_edits.with_label_values(&[edit.as_str(), word]).inc();
                // Whoever asked may have gone.
                let left = self.catalog.snapshot();
                let _ = done.send(result.map(|outcome| Made { outcome, left }));
            }
            Order::Reload(file, done) => {
                self.file = file;
                self.tell_of_shadowed();
                self.tell_of_left_alone();
                self.bring_about(Earlier::default()).await;
                let _ = done.send(());
            }
        }
    }

    async fn edit(&mut self, edit: &Edit, precondition: &Precondition) -> Result<Outcome, EditError> {
        if !self.be_sure().await {
            return Err(EditError::Failed("whether an earlier edit has landed is not known yet".to_owned()));
        }
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
                tracing::error!(%error, "an operator's edit failed");
                self.is_unsure = true;
                self.be_sure().await;
                return Err(EditError::Failed(error.to_string()));
            }
            Err(_) => {
                self.is_unsure = true;
                self.be_sure().await;
                return Err(EditError::Failed("a fault in the program".to_owned()));
            }
        }
        for write in decided.writes {
            match write {
                Write::PutRepository(document) => {
                    self.api.repositories.insert(document.name.clone(), Written::Taken(document));
                }
                Write::DeleteRepository(name) => drop(self.api.repositories.remove(&name)),
                Write::PutService(document) => {
                    self.api.services.insert(document.name.clone(), Written::Taken(document));
                }
                Write::DeleteService(name) => drop(self.api.services.remove(&name)),
            }
        }
        self.bring_about(Earlier::default()).await;
        Ok(decided.outcome)
    }

    /// A write that failed may have landed all the same: the disk took it, and could not say so. What is stored is carried
    /// out, as a restart would. False: it cannot be read yet.
    async fn be_sure(&mut self) -> bool {
        if !self.is_unsure {
            return true;
        }
        let store = self.store.clone();
        let stored = match spawn_blocking(move || store.documents()).await {
            Ok(Ok(stored)) => stored,
            Ok(Err(error)) => {
                tracing::warn!(%error, "whether an edit that failed has landed is not known yet");
                return false;
            }
            Err(_) => return false,
        };
        self.is_unsure = false;
        if stored != self.api {
            tracing::warn!("an edit that failed has landed, and is carried out");
            self.api = stored;
            self.bring_about(Earlier::default()).await;
        }
        true
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

    /// Who takes a repository out of the file may not know who else uses it.
    fn tell_of_left_alone(&self) {
        let definitions = Definitions::of(&self.file, &self.api);
        for (service, repository) in definitions.left_alone() {
            tracing::warn!(%service, %repository, "there is no such repository (any more): the service stays at what it is at");
        }
    }

    pub(super) fn count(&self, definitions: &Definitions) {
        for by in DefinedBy::ALL {
            let repositories = definitions.repositories.values().filter(|each| each.by == by).count();
            let services = definitions.services.values().filter(|each| each.by == by).count();
            for (kind, number) in [("repository", repositories), ("service", services)] {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                self.crew.metrics.catalog_objects.with_label_values(&[kind, by.as_str()]).set(number);
            }
        }
        let services = definitions.services.values().filter(|each| each.document.refused().is_some()).count();
        for (kind, refused) in [("repository", self.refused.len()), ("service", services)] {
            let nameless = self.api.nameless.iter().filter(|each| each.kind == kind).count();
            let refused = i64::try_from(refused + nameless).unwrap_or(i64::MAX);
            self.crew.metrics.catalog_refused.with_label_values(&[kind]).set(refused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::inspect;
    use crate::census::Census;
    use crate::config::{RepositoryConfig, RetentionConfig, UpstreamsConfig};
    use crate::data_dir::DataDir;
    use crate::database::DatabaseFile;
    use crate::database::faulty::Faults;
    use crate::metrics::Metrics;
    use crate::publisher::Publisher;
    use std::path::Path;
    use std::sync::atomic::Ordering;

    /// A catalogue of nothing, whose next writes may fail.
    async fn begun(dir: &Path, faults: &Faults, drain: &Drain) -> (Arc<Catalog>, Editor) {
        let (data_dir, limits) = (DataDir::open(dir).unwrap().0, LimitsConfig::default());
        drop(Store::open(data_dir.clone()).unwrap());
        let store = Store::of(DatabaseFile::faulty(&data_dir.catalog(), faults), data_dir.clone());
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let log = Arc::new(EventLog::new(&limits, metrics.clone()));
        let retention = RetentionConfig::default();
        let publisher = Publisher::open(data_dir.clone(), 0, retention, log.clone(), metrics.clone()).unwrap();
        let census = Arc::new(Census::new(metrics.clone()));
        let crew = Crew::new(Arc::new(publisher), data_dir, census, metrics, &limits, &UpstreamsConfig::default());
        let (file, api) = (Documents::default(), Documents::default());
        begin(Estate { file, api, store, secrets_dir: None, limits, crew, log }, Earlier::default(), drain).await
    }

    #[tokio::test]
    async fn what_an_edit_that_failed_has_left_is_what_is_carried_out() {
        let (mut landed, mut was_made) = (0, false);
        for sync in 1..20 {
            let (dir, faults, drain) = (tempfile::tempdir().unwrap(), Faults::default(), Drain::new());
            let (catalog, editor) = begun(dir.path(), &faults, &drain).await;
            // It may not be mirrored: nobody is asked.
            let document = RepositoryConfig::new("shop".parse().unwrap(), "file:///shop");
            let edit = || Edit::PutRepository(document.clone().into());
            faults.fails_at_sync.store(sync, Ordering::SeqCst);
            was_made = editor.edit(edit(), Precondition::default()).await.is_ok();
            faults.fails_at_sync.store(0, Ordering::SeqCst);
            let stored = inspect(&DatabaseFile::copy_of(&DataDir::catalog_in(dir.path())).unwrap()).unwrap();
            let is_stored = stored.repositories.contains_key("shop");
            assert_eq!(catalog.snapshot().definitions.repositories.contains_key("shop"), is_stored, "{sync}");
            landed += usize::from(!was_made && is_stored);
            let again = editor.edit(edit(), Precondition::default()).await.unwrap();
            assert_eq!(again.outcome, if is_stored { Outcome::Unchanged } else { Outcome::Created });
            assert!(drain.finish(Duration::from_secs(60)).await);
            if was_made {
                break;
            }
        }
        assert!(was_made && landed > 0, "{landed} landed");
    }
}
