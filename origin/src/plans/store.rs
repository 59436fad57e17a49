//! Follows the list of operators' plans, and hands all plans on to publications.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::Registry;
use weir_protocol::name::{RolloutName, ServiceName};
use weir_publish::Plans;
use weir_rollout::{Plan, StoredPlan};
use weir_runtime::shutdown::Drain;
use weir_source::Service;
use weir_store::Records;

use super::known::{self, DefinedPlan, Known};
use super::metrics::PlanMetrics;
use crate::catalog::{Map, Outcome, Precondition, Refusal};
use crate::config::rollouts::{MAX_ROLLOUTS, by_name};
use crate::fleet::FleetError;
use crate::named_list::{Item, NamedList, read_once};
use crate::versions::Versions;

impl Item for StoredPlan {
    const KEY: &'static str = "cluster/rollouts";
    const LIST: &'static str = "rollouts";
    const ONE: &'static str = "rollout";
    const MOST: usize = MAX_ROLLOUTS;

    fn name(&self) -> &str {
        self.name()
    }
}

/// The stored plans that this release does not follow, with the reason.
pub(crate) async fn refused(records: &Records) -> Result<Vec<(String, String)>, FleetError> {
    let plans: Vec<StoredPlan> = read_once(records).await?;
    Ok(plans.iter().filter_map(|plan| Some((plan.name().to_owned(), known::refused(plan)?))).collect())
}

/// The plans. Clones are cheap.
#[derive(Clone)]
pub(crate) struct PlanStore {
    list: NamedList<StoredPlan>,
    known: Arc<Mutex<Known>>,
    shown: Plans,
    metrics: PlanMetrics,
}

impl PlanStore {
    /// Reads the record, before anything is published.
    pub(crate) async fn start(
        records: &Records,
        file: &[Plan],
        shown: Plans,
        is_shared: bool,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let metrics = PlanMetrics::register(registry)?;
        let known = Arc::new(Mutex::new(Known { file: by_name(file), api: Vec::new() }));
        let (all, of_list) = (known.clone(), shown.clone());
        let show = Box::new(move |list: Option<Vec<StoredPlan>>| {
            let mut known = lock(&all);
            known.api = list.unwrap_or_default();
            of_list.set(known.valid());
        });
        let list = NamedList::start(records, is_shared, show, metrics.readable.clone()).await;
        let store = Self { list, known, shown, metrics };
        store.warn_of_overridden();
        Ok(store)
    }

    /// Follows the record until the drain, and has services resolved again whose plan was missing.
    pub(crate) fn follow(&self, versions: Versions, drain: &Drain) {
        let (store, mut before) = (self.clone(), self.names());
        self.list.follow(drain, move |_| {
            let after = store.names();
            store.metrics.plans.set(i64::try_from(after.len()).unwrap_or(i64::MAX));
            let new: BTreeSet<_> = after.difference(&before).collect();
            if !new.is_empty() {
                let snapshot = versions.catalog.snapshot();
                let waited = |service: &&Arc<Service>| service.rollout.as_ref().is_some_and(|name| new.contains(name));
                snapshot.services.values().filter(waited).for_each(|service| versions.resolve_again(service));
            }
            before = after;
            None
        });
    }

    /// Replaces the plans of the configuration file.
    pub(crate) fn set_file(&self, file: &[Plan]) {
        let mut known = lock(&self.known);
        known.file = by_name(file);
        self.shown.set(known.valid());
        drop(known);
        self.warn_of_overridden();
        self.list.notify();
    }

    /// The names of those that can be followed.
    fn names(&self) -> BTreeSet<RolloutName> {
        lock(&self.known).valid().into_keys().collect()
    }

    /// All plans, as this origin knows them.
    pub(crate) fn all(&self) -> Map<RolloutName, DefinedPlan> {
        lock(&self.known).all()
    }

    /// Has the record read again soon.
    pub(crate) fn notify(&self) {
        self.list.notify();
    }

    /// Reads the record again, so that a plan is found that another origin has just stored.
    pub(crate) async fn read_again(&self) -> Result<(), FleetError> {
        self.list.read_again().await
    }

    /// Creates, replaces or deletes a plan. `new`: `None` to delete it, unless these services name it.
    pub(crate) async fn edit(
        &self,
        name: &RolloutName,
        new: Option<Plan>,
        precondition: &Precondition,
        services: &[ServiceName],
    ) -> Result<Outcome, FleetError> {
        self.refuse_of_file(name)?;
        let in_use = || FleetError::Refused(Refusal::PlanInUse(services.to_vec()));
        let may = |_: &_| if new.is_none() && !services.is_empty() { Err(in_use()) } else { Ok(()) };
        let stored = new.clone().map(StoredPlan::Known);
        self.list.edit(name.as_str(), stored.as_ref(), precondition, may).await
    }

    /// What storing a plan would do. Nothing is changed.
    pub(crate) async fn check(&self, new: Plan, precondition: &Precondition) -> Result<Outcome, FleetError> {
        self.refuse_of_file(new.name())?;
        let name = new.name().clone();
        self.list.check(name.as_str(), Some(&StoredPlan::Known(new)), precondition).await
    }

    fn refuse_of_file(&self, name: &RolloutName) -> Result<(), FleetError> {
        let refusal = || Refusal::DefinedByFile { kind: StoredPlan::ONE, name: name.to_string() };
        if lock(&self.known).file.contains_key(name) { Err(FleetError::Refused(refusal())) } else { Ok(()) }
    }

    fn warn_of_overridden(&self) {
        for name in lock(&self.known).overridden() {
            tracing::warn!(
                kind = StoredPlan::ONE,
                name,
                "the configuration file and a document of operators define this: the file takes precedence"
            );
        }
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}
