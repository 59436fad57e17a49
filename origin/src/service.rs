//! The state of a service in a running origin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use tokio::sync::watch;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;
use weir_runtime::config::ConfigError;

use crate::config::ServiceConfig;
use crate::source::{Followed, SourceKind};
use crate::tarball::Selection;

/// A configured service: its definition, current descriptor and condition.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: ServiceName,
    pub(crate) repository: RepositoryName,
    pub(crate) followed: Followed,
    pub(crate) selection: Selection,
    /// Its document is invalid: it follows no ref, and its published version stays.
    pub(crate) is_refused: bool,
    current: Arc<watch::Sender<Option<Arc<Descriptor>>>>,
    condition: Arc<watch::Sender<Condition>>,
    /// The service was deleted or redefined.
    withdrawn: AtomicBool,
}

/// Whether a service follows its ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Not examined since the start, or since it was changed or unpinned.
    Pending,
    /// The published version matches the mirror.
    Following,
    /// The last good publication stays, if there is one.
    Unhealthy {
        /// When the failures began.
        since: SystemTime,
        /// The failed step: `document`, `authenticate`, `resolve`, `fetch`, `verify`, `select`, `lfs`, `build` or `store`.
        step: &'static str,
        /// For operators.
        reason: String,
    },
    /// The published version stays until an operator unpins the service.
    Pinned {
        /// When it was pinned.
        since: SystemTime,
        /// The result of following its ref.
        without_pin: WithoutPin,
        /// Set if objects of the pinned version are lost.
        lost: Option<Lost>,
    },
}

/// Why the pinned version cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// When this was found.
    pub since: SystemTime,
    /// For operators.
    pub reason: String,
}

/// The version that a pinned service would have without its pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WithoutPin {
    /// Not examined since the start.
    Unknown,
    /// This revision.
    At(RevisionId),
    /// It could not follow its ref.
    Unhealthy {
        /// The failed step, as for [`Condition::Unhealthy`].
        step: &'static str,
        /// For operators.
        reason: String,
    },
}

impl Condition {
    /// The value in `/status`.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Condition::Pending => "pending",
            Condition::Following => "following",
            Condition::Unhealthy { .. } => "unhealthy",
            Condition::Pinned { .. } => "pinned",
        }
    }

    /// Why the pinned version cannot be read.
    pub(crate) fn lost(&self) -> Option<&Lost> {
        match self {
            Condition::Pinned { lost, .. } => lost.as_ref(),
            _ => None,
        }
    }
}

impl Service {
    /// Creates a service of a repository of this kind, with the version that was published before the start.
    pub(crate) fn new(
        config: &ServiceConfig,
        kind: SourceKind,
        current: Option<Descriptor>,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            name: config.name.clone(),
            repository: config.repository.clone(),
            followed: config.followed(kind).map_err(|error| ConfigError::invalid(error.to_string()))?,
            selection: config.selection()?,
            is_refused: false,
            current: Arc::new(watch::Sender::new(current.map(Arc::new))),
            condition: Arc::new(watch::Sender::new(Condition::Pending)),
            withdrawn: AtomicBool::new(false),
        })
    }

    /// Creates a service with an invalid document, with the version that was published before.
    pub(crate) fn refused(
        name: ServiceName,
        repository: RepositoryName,
        current: Option<Descriptor>,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            is_refused: true,
            ..Self::new(&ServiceConfig::new(name, repository), SourceKind::default(), current)?
        })
    }

    /// Replaces `before`, a service under another document. Its published version stays until there is a new one.
    pub(crate) fn replacing(self, before: &Self) -> Self {
        // Withdrawn first, so that its condition is final.
        before.withdraw();
        before.set_aside();
        Self { current: before.current.clone(), condition: before.condition.clone(), ..self }
    }

    /// Stops publications of the service, including those being built.
    pub(crate) fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Relaxed)
    }

    /// The current descriptor.
    pub(crate) fn current(&self) -> Option<Arc<Descriptor>> {
        self.current.borrow().clone()
    }

    /// The service's name and current generation.
    pub(crate) fn generation(&self) -> Option<(ServiceName, Generation)> {
        self.current().map(|current| (self.name.clone(), current.publication().generation))
    }

    /// The current descriptor, as it changes.
    pub(crate) fn follow(&self) -> watch::Receiver<Option<Arc<Descriptor>>> {
        self.current.subscribe()
    }

    /// Makes a durable descriptor visible, unless a newer one is: writes may arrive out of order. `shown` is called
    /// with each visible descriptor, in order, before it is visible.
    pub(crate) fn show(&self, descriptor: Descriptor, shown: impl FnOnce(&Descriptor)) {
        self.current.send_if_modified(|current| {
            let newer = current.as_ref().is_none_or(|current| current.version() < descriptor.version());
            if newer {
                shown(current.insert(Arc::new(descriptor)));
            }
            newer
        });
    }

    pub(crate) fn condition(&self) -> Condition {
        self.condition.borrow().clone()
    }

    /// The condition, as it changes.
    pub(crate) fn follow_condition(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }

    pub(crate) fn is_pinned(&self) -> bool {
        matches!(*self.condition.borrow(), Condition::Pinned { .. })
    }

    /// Records that an object of the pinned version is lost.
    pub(crate) fn mark_lost(&self, reason: String, now: SystemTime) {
        self.condition.send_if_modified(|condition| match condition {
            Condition::Pinned { lost: lost @ None, .. } => {
                tracing::error!(service = %self.name, reason, "the objects of the pinned version are lost");
                *lost = Some(Lost { since: now, reason });
                true
            }
            _ => false,
        });
    }

    /// The pinned version can be read again.
    pub(crate) fn mark_recovered(&self) {
        self.condition.send_if_modified(|condition| match condition {
            Condition::Pinned { lost, .. } => lost.take().is_some(),
            _ => false,
        });
    }

    /// Pins the service until [`Service::unpinned`].
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

    /// Unpins the service; it is examined again unless its document is invalid.
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

    /// Forgets whether the service follows its ref: another origin follows it now.
    pub(crate) fn set_aside(&self) {
        self.condition.send_if_modified(|condition| {
            let looked_at = matches!(condition, Condition::Following | Condition::Unhealthy { .. });
            if looked_at {
                *condition = Condition::Pending;
            }
            looked_at
        });
    }

    /// Records the revision that its ref leads to.
    pub(crate) fn followed(&self, revision: &RevisionId) {
        // Checked with the condition locked: once the service is replaced, its successor owns the condition.
        self.condition.send_modify(|condition| match condition {
            _ if self.is_withdrawn() => {}
            Condition::Pinned { without_pin, .. } => *without_pin = WithoutPin::At(revision.clone()),
            Condition::Pending | Condition::Following => *condition = Condition::Following,
            Condition::Unhealthy { .. } => {
                tracing::info!(service = %self.name, "the service follows its ref again");
                *condition = Condition::Following;
            }
        });
    }

    /// Records a failure. Logs it if the reason is new.
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
