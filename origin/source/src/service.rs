//! The state of a service in a running origin.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use tokio::sync::watch;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::name::{RepositoryName, RolloutName, ServiceName};
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_runtime::config::ConfigError;
use weir_tarball::{ContentKey, FolderPath, Selection};
use weir_upstream::SourceKind;

use super::standing::{self, Admission, Age, Last, Standing};
use crate::{Followed, OciChoice, PartConfig, Pin, ServiceConfig};

/// A configured service: its definition, current descriptor and condition.
#[derive(Debug)]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// The repository whose owner publishes it; of a part, its own.
    pub repository: RepositoryName,
    /// What it follows there.
    pub followed: Followed,
    /// Which files of that are published.
    pub selection: Selection,
    /// What it is composed of, in the order of the tarball. Empty: it follows its repository alone.
    pub parts: Vec<Arc<Service>>,
    /// Of a part, which is not published by itself. It has the name and the current version of the composed service.
    pub part_of: Option<PartOf>,
    /// Whether its versions have an OCI form.
    pub oci: OciChoice,
    /// The plan by which new content is staged. `None`: it is published for everybody.
    pub rollout: Option<RolloutName>,
    /// Its document is invalid: it follows no ref, and its published version stays.
    pub is_refused: bool,
    current: Arc<watch::Sender<Option<Arc<Descriptor>>>>,
    condition: Arc<watch::Sender<Condition>>,
    standing: Mutex<Standing>,
    /// The service was deleted or redefined.
    withdrawn: AtomicBool,
}

/// Where a part is.
#[derive(Debug)]
pub struct PartOf {
    /// The repository that publishes the composed service.
    pub home: RepositoryName,
    /// Its folder in the tarball.
    pub to: FolderPath,
    /// The service whose published tarball it is. `None`: it follows a repository.
    pub service: Option<ServiceName>,
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
        /// By whom and why.
        pin: Pin,
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
    pub fn as_str(&self) -> &'static str {
        match self {
            Condition::Pending => "pending",
            Condition::Following => "following",
            Condition::Unhealthy { .. } => "unhealthy",
            Condition::Pinned { .. } => "pinned",
        }
    }

    /// Why the pinned version cannot be read.
    pub fn lost(&self) -> Option<&Lost> {
        match self {
            Condition::Pinned { lost, .. } => lost.as_ref(),
            _ => None,
        }
    }
}

impl Service {
    /// Creates a service of repositories of these kinds, with the version that was published before the start.
    pub fn new(
        config: &ServiceConfig,
        kind_of: impl Fn(&RepositoryName) -> Option<SourceKind>,
        current: Option<Descriptor>,
    ) -> Result<Self, ConfigError> {
        let mut followed = config.followed(kind_of).map_err(|error| ConfigError::invalid(error.to_string()))?;
        let current = Arc::new(watch::Sender::new(current.map(Arc::new)));
        let condition = Arc::new(watch::Sender::new(Condition::Pending));
        let new = |repository: &RepositoryName, followed, selection| Self {
            name: config.name.clone(),
            repository: repository.clone(),
            followed,
            selection,
            parts: Vec::new(),
            part_of: None,
            oci: OciChoice::default(),
            rollout: config.rollout.clone(),
            is_refused: false,
            current: current.clone(),
            condition: condition.clone(),
            standing: Mutex::default(),
            withdrawn: AtomicBool::new(false),
        };
        let (home, selection) = (config.home(), config.selection()?);
        if config.parts.is_empty() {
            return Ok(new(home, followed.remove(0), selection));
        }
        let part = |(part, followed): (&PartConfig, Followed)| {
            let part_of = PartOf { home: home.clone(), to: part.to.clone(), service: part.service.clone() };
            // What is published by another service belongs to whoever publishes this one.
            let repository = part.repository.as_ref().unwrap_or(home);
            Self { part_of: Some(part_of), ..new(repository, followed, part.selection()) }
        };
        let mut parts: Vec<Self> = config.parts.iter().zip(followed).map(part).collect();
        parts.sort_by_cached_key(|part| part.part_of.as_ref().map(|part| weir_tarball::position(&part.to)));
        let followed =
            Followed::parts(parts.iter().filter_map(|part| Some((&part.part_of.as_ref()?.to, &part.followed))));
        Ok(Self { parts: parts.into_iter().map(Arc::new).collect(), ..new(home, followed, selection) })
    }

    /// Creates a service with an invalid document, with the version that was published before.
    pub fn refused(
        name: ServiceName,
        repository: RepositoryName,
        current: Option<Descriptor>,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            is_refused: true,
            ..Self::new(&ServiceConfig::new(name, repository), |_| Some(SourceKind::default()), current)?
        })
    }

    /// Replaces `before`, a service under another document. Its published version stays until there is a new one.
    pub fn replacing(self, before: &Self) -> Self {
        // Withdrawn first, so that its condition is final.
        before.withdraw();
        before.set_aside();
        let of = |service: Self| Self {
            current: before.current.clone(),
            condition: before.condition.clone(),
            standing: Mutex::new(Standing::redefined()),
            ..service
        };
        // Nothing else has them yet.
        let parts = self.parts.into_iter().filter_map(Arc::into_inner).map(|part| Arc::new(of(part))).collect();
        of(Self { parts, ..self })
    }

    /// The services that follow a ref each: its parts, or itself. Parts that are services follow none.
    pub fn followers(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        self.sources().chain(self.parts.is_empty().then_some(self))
    }

    /// Its parts that follow a repository.
    pub fn sources(&self) -> impl Iterator<Item = &Arc<Self>> {
        self.parts.iter().filter(|part| part.of_service().is_none())
    }

    /// Whether it needs no repository: all its parts are services.
    pub fn is_of_services(&self) -> bool {
        !self.parts.is_empty() && self.sources().next().is_none()
    }

    /// Of a part: the service whose published tarball it is.
    pub fn of_service(&self) -> Option<&ServiceName> {
        self.part_of.as_ref()?.service.as_ref()
    }

    /// The services that are its parts.
    pub fn part_services(&self) -> impl Iterator<Item = &ServiceName> {
        self.parts.iter().filter_map(|part| part.of_service())
    }

    /// The published revision of its repository. `None`: nothing of this repository is published.
    pub(crate) fn published(&self) -> Option<RevisionId> {
        let current = self.current()?;
        let publication = current.publication();
        match &self.part_of {
            None => (publication.repository == self.repository).then(|| publication.revision_id.clone()),
            Some(PartOf { to, service, .. }) => {
                let part = publication.parts.iter().find(|part| part.to == to.as_str() && part.service == *service);
                let is_it = |part: &&Part| service.is_some() || part.repository == self.repository;
                Some(part.filter(is_it)?.revision_id.clone())
            }
        }
    }

    /// Of a part that is a service: the generation that was used last, since the start.
    pub fn used_generation(&self) -> Option<Generation> {
        self.standing().last.as_ref()?.generation
    }

    /// What it followed last: since the start, or when it was published.
    fn last(&self) -> Option<Last> {
        self.standing().last.clone().or_else(|| {
            let (revision, current) = (self.published()?, self.current()?);
            let of_chart = || revision.as_str().strip_prefix("helm:")?.split("+sha256:").next();
            let version = current.publication().version.as_ref().map(|version| version.as_str());
            let version = version.filter(|_| self.part_of.is_none()).or_else(of_chart);
            let version = version.and_then(|version| self.followed.version(version));
            Some(Last { version, listed: None, revision, generation: None })
        })
    }

    /// The revision that it followed last. `None`: nothing of its repository is published.
    pub fn last_revision(&self) -> Option<RevisionId> {
        Some(self.last()?.revision)
    }

    /// Why a revision is older than what the service followed last, by its version and the list that has it.
    pub(crate) fn behind(&self, revision: &RevisionId, age: &Age) -> Option<String> {
        standing::behind(&self.last()?, revision, age)
    }

    /// Whether a revision may be published without further polls.
    pub(crate) fn admit(&self, revision: &RevisionId, parts: &[Part], age: &Age, now: Instant) -> Admission {
        let own = self.standing().admit(revision, age, now);
        let of_parts = self.parts.iter().zip(parts.iter().zip(&age.parts));
        let of_parts = of_parts.map(|(part, (at, age))| (age, part.standing().admit(&at.revision_id, age, now)));
        // Every part that is behind must be asked for.
        let of_parts: Vec<_> = of_parts.filter(|(age, _)| age.behind.is_some()).map(|(_, asked)| asked).collect();
        let of_parts: Option<Vec<_>> = of_parts.into_iter().collect();
        let follows_other = |current: Arc<Descriptor>| current.followed_ref() != self.followed.to_string();
        let is_redefined = || self.standing().last.is_none() && self.current().is_some_and(follows_other);
        match own.or_else(|| of_parts?.first().copied()) {
            _ if age.behind.is_none() || is_redefined() => Admission::Forward,
            asked => asked.unwrap_or(Admission::Back),
        }
    }

    /// An operator asked for a poll: what it finds is published.
    pub fn ask_for_poll(&self, now: Instant) {
        self.standing().ask_for_poll(now);
    }

    /// Whether a poll that an operator asked for has not ended yet.
    pub fn awaits_poll(&self) -> bool {
        self.standing().awaits_poll() || self.parts.iter().any(|part| part.awaits_poll())
    }

    /// A poll that began then found nothing that it can follow.
    pub(crate) fn not_found(&self, seen_at: Option<Instant>) {
        self.standing().not_found(seen_at);
    }

    /// A webhook named a revision of its repository: it is published once it is found.
    pub fn name_revision(&self, revision: RevisionId, now: Instant) {
        // A delivery may come late, or twice.
        if self.last_revision().as_ref() != Some(&revision) {
            self.standing().name(revision, now);
        }
    }

    /// Forgets what it followed last and what was asked for, because another origin may have published since.
    pub fn forget_standing(&self) {
        *self.standing() = Standing::default();
        self.parts.iter().for_each(|part| part.forget_standing());
    }

    /// The key of the content that its ref leads to. `None`: that is not known since the start.
    pub fn tip(&self) -> Option<ContentKey> {
        self.standing().tip
    }

    pub(crate) fn set_tip(&self, key: ContentKey) {
        self.standing().tip = Some(key);
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops publications of the service, including those being built.
    pub fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Relaxed);
    }

    /// Whether it was deleted or redefined.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Relaxed)
    }

    /// The current descriptor.
    pub fn current(&self) -> Option<Arc<Descriptor>> {
        self.current.borrow().clone()
    }

    /// The service's name and current generation.
    pub fn generation(&self) -> Option<(ServiceName, Generation)> {
        self.current().map(|current| (self.name.clone(), current.publication().generation))
    }

    /// The current descriptor, as it changes.
    pub fn follow(&self) -> watch::Receiver<Option<Arc<Descriptor>>> {
        self.current.subscribe()
    }

    /// Makes a durable descriptor visible, unless a newer one is: writes may arrive out of order. `shown` is called
    /// with each visible descriptor, in order, before it is visible.
    pub fn show(&self, descriptor: Descriptor, shown: impl FnOnce(&Descriptor)) {
        self.current.send_if_modified(|current| {
            let newer = current.as_ref().is_none_or(|current| current.version() < descriptor.version());
            if newer {
                shown(current.insert(Arc::new(descriptor)));
            }
            newer
        });
    }

    /// The condition.
    pub fn condition(&self) -> Condition {
        self.condition.borrow().clone()
    }

    /// The condition, as it changes.
    pub fn follow_condition(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }

    /// What holds it at its version.
    pub fn pin(&self) -> Option<Pin> {
        match &*self.condition.borrow() {
            Condition::Pinned { pin, .. } => Some(pin.clone()),
            _ => None,
        }
    }

    /// Whether its version is pinned.
    pub fn is_pinned(&self) -> bool {
        matches!(*self.condition.borrow(), Condition::Pinned { .. })
    }

    /// Records that an object of the pinned version is lost.
    pub fn mark_lost(&self, reason: String, now: SystemTime) {
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
    pub fn mark_recovered(&self) {
        self.condition.send_if_modified(|condition| match condition {
            Condition::Pinned { lost, .. } => lost.take().is_some(),
            _ => false,
        });
    }

    /// Pins the service until [`Service::unpinned`].
    pub fn pinned(&self, pin: Pin) {
        self.condition.send_modify(|condition| {
            let without_pin = match std::mem::replace(condition, Condition::Pending) {
                Condition::Pinned { without_pin, .. } => without_pin,
                Condition::Unhealthy { step, reason, .. } => WithoutPin::Unhealthy { step, reason },
                Condition::Pending | Condition::Following => WithoutPin::Unknown,
            };
            *condition = Condition::Pinned { pin, without_pin, lost: None };
        });
    }

    /// Unpins the service; it is examined again unless its document is invalid.
    pub fn unpinned(&self) {
        self.condition.send_if_modified(|condition| match std::mem::replace(condition, Condition::Pending) {
            Condition::Pinned { pin, without_pin: WithoutPin::Unhealthy { step, reason }, .. } if self.is_refused => {
                *condition = Condition::Unhealthy { since: pin.since, step, reason };
                true
            }
            Condition::Pinned { .. } => {
                self.standing().ask();
                true
            }
            other => {
                *condition = other;
                false
            }
        });
    }

    /// Forgets whether the service follows its ref: another origin follows it now.
    pub fn set_aside(&self) {
        self.forget_standing();
        self.condition.send_if_modified(|condition| {
            let looked_at = matches!(condition, Condition::Following | Condition::Unhealthy { .. });
            if looked_at {
                *condition = Condition::Pending;
            }
            looked_at
        });
    }

    /// Records the revision that its ref leads to.
    pub(crate) fn followed(&self, revision: &RevisionId, parts: &[Part], age: &Age) {
        self.standing().followed(revision, age);
        for (part, (at, age)) in self.parts.iter().zip(parts.iter().zip(&age.parts)) {
            part.standing().followed(&at.revision_id, age);
        }
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

    /// Records that its ref leads to an older revision, and that what is published stays until that is confirmed.
    pub(crate) fn held_back(&self) {
        let is_published = self.current.borrow().is_some();
        self.condition.send_if_modified(|condition| {
            let is_other = matches!(condition, Condition::Pending | Condition::Unhealthy { .. });
            let follows = is_other && is_published && !self.is_withdrawn();
            if follows {
                *condition = Condition::Following;
            }
            follows
        });
    }

    /// Records a failure. Logs it if the reason is new.
    pub fn mark_failed(&self, step: &'static str, reason: String, now: SystemTime) {
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
