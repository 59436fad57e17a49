//! A service as the running origin knows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use tokio::sync::watch;
use weir_protocol::commit_id::CommitId;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::config::ConfigError;

use crate::config::ServiceConfig;
use crate::revision::Revision;
use crate::tarball::Selection;

/// A configured service: what it follows, what it is at, and whether it can follow.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: ServiceName,
    pub(crate) repository: RepositoryName,
    pub(crate) revision: Revision,
    pub(crate) selection: Selection,
    /// Its document is refused: it follows nothing, and what is published stays.
    pub(crate) is_refused: bool,
    current: Arc<watch::Sender<Option<Arc<Descriptor>>>>,
    condition: Arc<watch::Sender<Condition>>,
    /// It was deleted, or another configuration took its place.
    withdrawn: AtomicBool,
}

/// Whether a service follows its ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Not looked at since the start, or since it was changed or unpinned.
    Pending,
    /// What is published is what the mirror holds.
    Following,
    /// The last good publication stays, if there is one.
    Unhealthy {
        /// Since when without a success.
        since: SystemTime,
        /// Where: `document`, `resolve`, `verify`, `select`, `lfs`, `build` or `store`.
        step: &'static str,
        /// In plain words.
        reason: String,
    },
    /// What is published stays until an operator unpins the service.
    Pinned {
        /// Since when.
        since: SystemTime,
        /// What its ref would bring.
        without_pin: WithoutPin,
        /// It is pinned to what cannot be had.
        lost: Option<Lost>,
    },
}

/// An object of what a service is pinned to cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Since when.
    pub since: SystemTime,
    /// In plain words.
    pub reason: String,
}

/// What a pinned service would be at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WithoutPin {
    /// Not looked at since the start.
    Unknown,
    /// This commit.
    At(CommitId),
    /// It could not follow its ref.
    Unhealthy {
        /// Where: `document`, `resolve`, `verify`, `select`, `lfs`, `build` or `store`.
        step: &'static str,
        /// In plain words.
        reason: String,
    },
}

impl Condition {
    /// The word for `/status`.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Condition::Pending => "pending",
            Condition::Following => "following",
            Condition::Unhealthy { .. } => "unhealthy",
            Condition::Pinned { .. } => "pinned",
        }
    }

    /// Why a service that is pinned cannot be had.
    pub(crate) fn lost(&self) -> Option<&Lost> {
        match self {
            Condition::Pinned { lost, .. } => lost.as_ref(),
            _ => None,
        }
    }
}

impl Service {
    /// A configured service with what was published of it before the process started.
    pub(crate) fn new(config: &ServiceConfig, current: Option<Descriptor>) -> Result<Self, ConfigError> {
        Ok(Self {
            name: config.name.clone(),
            repository: config.repository.clone(),
            revision: config.revision.clone(),
            selection: config.selection()?,
            is_refused: false,
            current: Arc::new(watch::Sender::new(current.map(Arc::new))),
            condition: Arc::new(watch::Sender::new(Condition::Pending)),
            withdrawn: AtomicBool::new(false),
        })
    }

    /// A service whose document is refused, with what was published of it.
    pub(crate) fn refused(
        name: ServiceName,
        repository: RepositoryName,
        current: Option<Descriptor>,
    ) -> Result<Self, ConfigError> {
        Ok(Self { is_refused: true, ..Self::new(&ServiceConfig::new(name, repository), current)? })
    }

    /// The same service by another document, in whose place it is from now on. What is published stays until there is something
    /// new.
    pub(crate) fn going_on(self, before: &Self) -> Self {
        // First: how the one before fared is not how this one does.
        before.withdraw();
        before.condition.send_if_modified(|condition| {
            let looked_at = matches!(condition, Condition::Following | Condition::Unhealthy { .. });
            if looked_at {
                *condition = Condition::Pending;
            }
            looked_at
        });
        Self { current: before.current.clone(), condition: before.condition.clone(), ..self }
    }

    /// Nothing is published of it any more, also of what is being built.
    pub(crate) fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Relaxed);
    }

    /// Whether nothing of it may be published any more.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Relaxed)
    }

    /// What is published.
    pub(crate) fn current(&self) -> Option<Arc<Descriptor>> {
        self.current.borrow().clone()
    }

    /// The generation that is published, with the service's name.
    pub(crate) fn generation(&self) -> Option<(ServiceName, Generation)> {
        self.current().map(|current| (self.name.clone(), current.publication().generation))
    }

    /// What is published, as it changes.
    pub(crate) fn follow(&self) -> watch::Receiver<Option<Arc<Descriptor>>> {
        self.current.subscribe()
    }

    /// Shows a descriptor that is durable, unless a newer one is shown: what is made durable first may come here last.
    /// `shown` is told what is shown, in that order, before anybody can see it.
    pub(crate) fn show(&self, descriptor: Descriptor, shown: impl FnOnce(&Descriptor)) {
        self.current.send_if_modified(|current| {
            let newer = current.as_ref().is_none_or(|current| current.version() < descriptor.version());
            if newer {
                shown(current.insert(Arc::new(descriptor)));
            }
            newer
        });
    }

    /// Whether it follows its ref.
    pub(crate) fn condition(&self) -> Condition {
        self.condition.borrow().clone()
    }

    /// Whether it follows its ref, as it changes.
    pub(crate) fn follow_condition(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }

    /// Whether what is published stays whatever its ref does.
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(*self.condition.borrow(), Condition::Pinned { .. })
    }

    /// An object of what it is pinned to is lost.
    pub(crate) fn mark_lost(&self, reason: String, now: SystemTime) {
        self.condition.send_if_modified(|condition| match condition {
            Condition::Pinned { lost: lost @ None, .. } => {
                tracing::error!(service = %self.name, reason, "the service is pinned to what cannot be had");
                *lost = Some(Lost { since: now, reason });
                true
            }
            _ => false,
        });
    }

    /// What it is pinned to can be had again.
    pub(crate) fn mark_found(&self) {
        self.condition.send_if_modified(|condition| match condition {
            Condition::Pinned { lost, .. } => lost.take().is_some(),
            _ => false,
        });
    }

    /// It is pinned, until [`Service::unpinned`].
    pub(crate) fn pinned(&self, since: SystemTime) {
        self.condition.send_modify(|condition| {
            let without_pin = match std::mem::replace(condition, Condition::Pending) {
                Condition::Pinned { without_pin, .. } => without_pin,
                Condition::Unhealthy { step, reason, .. } => WithoutPin::Unhealthy { step, reason },
                Condition::Pending | Condition::Following => WithoutPin::Unknown,
            };
            *condition = Condition::Pinned { since, without_pin, lost: None };
        });
    }

    /// It is pinned no longer, and is to be looked at; by nobody when it is refused.
    pub(crate) fn unpinned(&self) {
        self.condition.send_if_modified(|condition| match std::mem::replace(condition, Condition::Pending) {
            Condition::Pinned { since, without_pin: WithoutPin::Unhealthy { step, reason }, .. } if self.is_refused => {
                *condition = Condition::Unhealthy { since, step, reason };
                true
            }
            Condition::Pinned { .. } => true,
            other => {
                *condition = other;
                false
            }
        });
    }

    /// Its ref was followed to this commit, or would have been, were it not pinned.
    pub(crate) fn followed(&self, commit: &CommitId) {
        // Within: when another took its place, that one's condition is not touched.
        self.condition.send_modify(|condition| match condition {
            _ if self.is_withdrawn() => {}
            Condition::Pinned { without_pin, .. } => *without_pin = WithoutPin::At(commit.clone()),
            Condition::Pending | Condition::Following => *condition = Condition::Following,
            Condition::Unhealthy { .. } => {
                tracing::info!(service = %self.name, "the service follows its ref again");
                *condition = Condition::Following;
            }
        });
    }

    /// It cannot follow its ref. Logged when the reason is a new one.
    pub(crate) fn mark_failed(&self, step: &'static str, reason: String, now: SystemTime) {
        let published = self.current.borrow().is_some();
        self.condition.send_modify(|condition| {
            if self.is_withdrawn() {
                return;
            }
            let (since, known) = match condition {
                Condition::Unhealthy { since, reason, .. } => (*since, Some(&*reason)),
                Condition::Pinned { without_pin: WithoutPin::Unhealthy { reason, .. }, .. } => (now, Some(&*reason)),
                _ => (now, None),
            };
            if known == Some(&reason) {
                return;
            }
            tracing::warn!(service = %self.name, step, reason, published, "the service cannot follow its ref");
            match condition {
                Condition::Pinned { without_pin, .. } => *without_pin = WithoutPin::Unhealthy { step, reason },
                _ => *condition = Condition::Unhealthy { since, step, reason },
            }
        });
    }
}
