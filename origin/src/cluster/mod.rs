//! This origin as a member of a cluster. One task drives [`weir_ownership::Core`]; the others see the
//! [`View`] that it publishes, and ask it through [`Cluster`].
//!
//! Begin at [`Membership::start`]. `task.rs` is the task, `engine.rs` its requests to the record store, and `work.rs`
//! starts and stops what this origin does for a repository. `run.rs` and `proved.rs` are what it remembers in the data
//! directory.

mod digests;
mod engine;
mod metrics;
mod mirrors;
mod owner;
mod proved;
mod replicas;
mod run;
mod secrets;
mod status;
mod task;
mod view;
mod work;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use weir_ownership::{Event, NodeState};
use weir_protocol::name::{NodeName, RepositoryName};
use weir_publish::Validity;
use weir_store::Version;

pub(crate) use self::digests::digests;
pub(crate) use self::metrics::ClusterMetrics;
pub(crate) use self::mirrors::Source as MirrorSource;
pub(crate) use self::owner::{Owner, owner};
pub(crate) use self::proved::ensure_proved;
pub(crate) use self::replicas::{MAX_AGE, Replicas, Unreadable};
pub(crate) use self::secrets::Secrets;
pub(crate) use self::status::{owned_entry, status};
pub(crate) use self::task::{Membership, Parts};
pub(crate) use self::view::{Member, Owned, OwnedRepositories, View};

/// The handle of the cluster's task. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Cluster {
    view: watch::Receiver<Arc<View>>,
    orders: mpsc::Sender<Order>,
    validity: Validity,
    secrets: Secrets,
}

/// What the task is told.
enum Order {
    Event(Event<Version>),
    /// [`Event::Asked`], and where the answer goes.
    Ask(RepositoryName, oneshot::Sender<bool>),
}

impl Cluster {
    /// The members as this one sees them.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    /// The view, as it changes.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<View>> {
        self.view.clone()
    }

    /// Tells whether all members have the same configuration files now.
    pub(crate) fn agreement(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let view = self.view.clone();
        Arc::new(move || view.borrow().agree)
    }

    /// Tells whether all living members read agents, assignments and issuers in shards.
    pub(crate) fn knows_shards(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        self.all(|member| member.knows_shards)
    }

    /// Tells whether no living member deletes blobs that descriptors reference.
    pub(crate) fn knows_blobs(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        self.all(|member| member.knows_blobs)
    }

    /// The living members that would lose what is staged. `None`: this origin does not see the members now.
    pub(crate) fn former_members(&self) -> Option<Vec<NodeName>> {
        let view = self.view();
        let former = view.others.values().filter(|member| !member.knows_staged).map(|member| member.name.clone());
        (view.has_session && view.sees_members).then(|| former.collect())
    }

    fn all(&self, knows: fn(&Member) -> bool) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let view = self.view.clone();
        Arc::new(move || {
            let view = view.borrow();
            view.has_session && view.sees_members && view.others.values().all(knows)
        })
    }

    /// Until when this origin may act for what it owns.
    pub(crate) fn validity(&self) -> &Validity {
        &self.validity
    }

    /// By which members know each other.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// The member to which a repository without a record belongs. `None`: there is no active member.
    pub(crate) fn placed(&self, repository: &RepositoryName) -> Option<NodeName> {
        self.view().placed(repository)
    }

    /// Passes an event on to the task. Returns false if the origin is stopping.
    pub(crate) async fn send(&self, event: Event<Version>) -> bool {
        self.orders.send(Order::Event(event)).await.is_ok()
    }

    /// Whether this origin is ready to own a repository. It prepares meanwhile, also if the caller gives up.
    pub(crate) async fn asked(&self, repository: &RepositoryName) -> bool {
        let (reply, is_ready) = oneshot::channel();
        self.orders.send(Order::Ask(repository.clone(), reply)).await.is_ok() && is_ready.await.unwrap_or(false)
    }

    /// Hands everything over to the other members, and leaves the cluster. Returns false if that took too long: the others
    /// take over when the session has ended.
    pub(crate) async fn leave(&self, patience: Duration) -> bool {
        let mut view = self.follow();
        let left = async {
            self.send(Event::Drain).await && view.wait_for(|view| view.me.state == NodeState::Left).await.is_ok()
        };
        timeout(patience, left).await.unwrap_or(false)
    }
}
