//! Follows the list of freezes, and tells publications what is frozen.

use std::time::{Duration, SystemTime};

use prometheus::Registry;
use weir_protocol::name::FreezeName;
use weir_publish::Freezes;
use weir_rollout::Freeze;
use weir_runtime::shutdown::Drain;
use weir_store::Records;

use super::metrics::FreezeMetrics;
use crate::catalog::{Outcome, Precondition};
use crate::fleet::FleetError;
use crate::named_list::{Item, NamedList};
use crate::versions::Versions;

/// The most freezes.
pub(crate) const MAX_FREEZES: usize = 100;

impl Item for Freeze {
    const KEY: &'static str = "cluster/freezes";
    const LIST: &'static str = "freezes";
    const ONE: &'static str = "freeze";
    const MOST: usize = MAX_FREEZES;

    fn name(&self) -> &str {
        self.name.as_str()
    }

    fn is_in_force(&self, now: SystemTime) -> bool {
        Freeze::is_in_force(self, now)
    }
}

/// The freezes. Clones are cheap.
#[derive(Clone)]
pub(crate) struct FreezeStore {
    list: NamedList<Freeze>,
    shown: Freezes,
    metrics: FreezeMetrics,
}

impl FreezeStore {
    /// Reads the record, before anything is published. Until it could be read, nothing new is.
    pub(crate) async fn start(
        records: &Records,
        shown: Freezes,
        is_shared: bool,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let (metrics, of_list) = (FreezeMetrics::register(registry)?, shown.clone());
        let show = Box::new(move |list| of_list.set(list));
        let list = NamedList::start(records, is_shared, show, metrics.readable.clone()).await;
        Ok(Self { list, shown, metrics })
    }

    /// Follows the record until the drain, and has services resolved again whose freeze has ended.
    pub(crate) fn follow(&self, versions: Versions, drain: &Drain) {
        let (store, mut before) = (self.clone(), self.shown.in_force(SystemTime::now()));
        self.list.follow(drain, move |now| {
            let after = store.shown.in_force(now);
            store.metrics.freezes.set(after.as_ref().map_or(0, |all| i64::try_from(all.len()).unwrap_or(i64::MAX)));
            if after != before {
                store.resolve_again(before.as_deref(), &versions, now);
            }
            before = after;
            ends(before.as_deref().unwrap_or_default(), now)
        });
    }

    /// Has the services resolved again that were frozen and are not any more. `before`: `None`, all were.
    fn resolve_again(&self, before: Option<&[Freeze]>, versions: &Versions, now: SystemTime) {
        for service in versions.catalog.snapshot().services.values() {
            let was_frozen = before.is_none_or(|before| before.iter().any(|freeze| freeze.covers(&service.name)));
            if was_frozen && self.shown.of(&service.name, now).is_none() {
                versions.resolve_again(service);
            }
        }
    }

    /// Has the record read again soon.
    pub(crate) fn notify(&self) {
        self.list.notify();
    }

    /// Reads the record again, after another origin has written it.
    pub(crate) async fn read_again(&self) -> Result<(), FleetError> {
        self.list.read_again().await
    }

    /// The freezes in force, also those that another origin has just written.
    pub(crate) async fn list(&self, now: SystemTime) -> Result<Vec<Freeze>, FleetError> {
        self.read_again().await?;
        Ok(self.shown.in_force(now).unwrap_or_default())
    }

    /// The freeze of a name that is in force, as this origin knows it.
    pub(crate) fn get(&self, name: &FreezeName, now: SystemTime) -> Option<Freeze> {
        self.shown.in_force(now)?.into_iter().find(|freeze| freeze.name == *name)
    }

    /// Creates, replaces or deletes a freeze. `new`: `None` to delete it. `may`: refuses by what is there before.
    pub(crate) async fn edit<E: From<FleetError>>(
        &self,
        name: &FreezeName,
        new: Option<&Freeze>,
        precondition: &Precondition,
        may: impl Fn(&Freeze) -> Result<(), E>,
    ) -> Result<Outcome, E> {
        self.list.edit(name.as_str(), new, precondition, may).await
    }
}

/// After which time the first freeze ends.
fn ends(in_force: &[Freeze], now: SystemTime) -> Option<Duration> {
    let left = in_force.iter().filter_map(|freeze| freeze.until?.duration_since(now).ok());
    left.min()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_publish::Frozen;
    use weir_store::StoreMetrics;
    use weir_store::testing::{FaultyEngine, WriteFault};

    use super::*;

    #[test]
    fn the_end_that_comes_first_is_waited_for() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(1);
        let freeze = |until: Option<u64>| Freeze {
            name: "sale".parse().unwrap(),
            services: Vec::new(),
            until: until.map(|seconds| now + Duration::from_secs(seconds)),
            reason: None,
        };
        assert_eq!(ends(&[freeze(None)], now), None);
        assert_eq!(ends(&[freeze(Some(9)), freeze(Some(2)), freeze(None)], now), Some(Duration::from_secs(2)));
    }

    async fn origin(engine: &Arc<FaultyEngine>) -> (FreezeStore, Freezes) {
        let (shown, registry) = (Freezes::default(), Registry::new());
        let records = Records::over(engine.clone(), StoreMetrics::register(&registry).unwrap());
        (FreezeStore::start(&records, shown.clone(), true, &registry).await.unwrap(), shown)
    }

    async fn put(origin: &FreezeStore, name: &str) -> Result<Outcome, FleetError> {
        let services = vec!["shop-*".parse().unwrap()];
        let freeze = Freeze { name: name.parse().unwrap(), services, until: None, reason: None };
        origin.edit(&freeze.name, Some(&freeze), &Precondition::default(), |_| Ok(())).await
    }

    async fn names(origin: &FreezeStore) -> Vec<String> {
        let all = origin.list(SystemTime::now()).await.unwrap();
        all.iter().map(|freeze| freeze.name.to_string()).collect()
    }

    #[tokio::test]
    async fn all_origins_follow_one_record_and_what_cannot_be_read_freezes_what_it_did() {
        let dir = tempfile::tempdir().unwrap();
        let engine = FaultyEngine::local(dir.path());
        let ((one, _), (two, of_two)) = (origin(&engine).await, origin(&engine).await);
        let (shop, now) = ("shop-a".parse().unwrap(), SystemTime::now());
        assert_eq!(of_two.of(&shop, now), None);
        assert_eq!(put(&one, "a").await.unwrap(), Outcome::Created);
        assert_eq!(put(&two, "b").await.unwrap(), Outcome::Created);
        assert_eq!(
            (names(&one).await, names(&two).await),
            (vec!["a".into(), "b".into()], vec!["a".into(), "b".into()])
        );
        engine.fail_writes([WriteFault::Unconfirmed]);
        assert_eq!(put(&one, "c").await.unwrap(), Outcome::Created);
        engine.fail_writes([WriteFault::Lost]);
        assert!(matches!(put(&one, "d").await, Err(FleetError::Unknown(_))));
        assert_eq!(names(&one).await, ["a", "b", "c"]);

        for copy in ["record", "previous"] {
            std::fs::write(dir.path().join(format!("cluster/freezes.{copy}")), "damaged").unwrap();
        }
        assert!(matches!(two.list(now).await, Err(FleetError::Unreadable(_))));
        assert!(matches!(put(&two, "e").await, Err(FleetError::Unreadable(_))));
        assert!(matches!(of_two.of(&shop, now), Some(Frozen::By(_))), "what was read last applies");
        let (_, of_new) = origin(&engine).await;
        assert_eq!(of_new.of(&"blog".parse().unwrap(), now), Some(Frozen::Unknown));
    }
}
