//! Suspended repositories: their record or pages are damaged or unread, and nothing new is published until they are
//! read, or until an operator confirms the rest.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;
use weir_protocol::name::RepositoryName;

use super::error::PublishError;
use super::known::{SuspendedUntil, Suspension};
use super::load::{Loaded, load};
use super::open::Started;
use super::publisher::{Handle, Publisher};
use super::stored_definitions::{Definitions, StoredDefinitions};
use super::writer::{Repository, Request};

/// A repository that was reloaded, with the number of reloads so far.
pub(crate) struct Reload {
    repository: Arc<Repository>,
    number: u64,
}

impl Reload {
    pub(crate) fn name(&self) -> &RepositoryName {
        &self.repository.name
    }
}

impl Publisher {
    /// The suspended repositories.
    pub(crate) fn suspended(&self) -> BTreeMap<RepositoryName, Suspension> {
        let handles = self.handles().into_iter();
        handles.filter_map(|(name, handle)| Some((name, handle.repository.suspension()?))).collect()
    }

    /// Whether the catalog may lack definitions: a repository is suspended, was reloaded just now, or has lost its
    /// record.
    pub(crate) fn may_have_unknown_definitions(&self) -> bool {
        let repositories = self.repositories.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = repositories.values().any(|handle| handle.repository.may_have_unknown_definitions());
        drop(repositories);
        unknown || self.without_record() > 0
    }

    /// How many repositories have objects but still no record.
    pub(crate) fn without_record(&self) -> usize {
        let has_none = |name: &&RepositoryName| {
            self.existing(name).is_none_or(|handle| handle.repository.known().version.is_none())
        };
        self.without_record.iter().filter(has_none).count()
    }

    /// Waits until a repository is reloaded.
    pub(crate) async fn wait_for_reload(&self) {
        self.shared.reloaded.notified().await;
    }

    /// The reloaded repositories that the catalog has not [applied](Publisher::mark_applied).
    pub(crate) fn unapplied_reloads(&self) -> Vec<Reload> {
        let handles = self.handles().into_values().map(|Handle { repository, .. }| repository);
        let due = handles.filter_map(|repository| {
            let number = repository.reloads.load(Ordering::SeqCst);
            let is_due = number != repository.applied_reloads.load(Ordering::SeqCst) && !repository.is_unread();
            is_due.then_some(Reload { repository, number })
        });
        due.collect()
    }

    /// The definitions and current versions of a reloaded repository.
    ///
    /// # Errors
    /// The repository cannot be read now.
    pub(crate) async fn reloaded_definitions(
        &self,
        Reload { repository, .. }: &Reload,
    ) -> Result<(StoredDefinitions, Started), PublishError> {
        let Loaded { known, definitions: of_services, .. } =
            load(&self.shared.objects, &self.shared.records, &repository.name).await;
        if let Some(unread) = known.suspension.filter(|suspension| suspension.until == SuspendedUntil::Read) {
            return Err(PublishError::Object(unread.reason));
        }
        let (mut definitions, mut published) = (Definitions::default(), Started::default());
        definitions.add(&repository.name, known.record.definition, of_services);
        published.add(repository, |_| true);
        Ok((definitions.stored, published))
    }

    /// Called when the catalog has applied the definitions of a reload.
    pub(crate) fn mark_applied(&self, Reload { repository, number }: &Reload) {
        repository.applied_reloads.store(*number, Ordering::SeqCst);
    }

    /// Why a repository is suspended.
    pub(crate) fn suspension(&self, repository: &RepositoryName) -> Option<Suspension> {
        self.existing(repository)?.repository.suspension()
    }

    /// An operator accepts the readable state of a repository, and publishing goes on from there. Returns false if
    /// the repository was not suspended.
    ///
    /// # Errors
    /// The stored state is not the one that is served, or cannot be read or written.
    pub(crate) async fn confirm(&self, repository: &RepositoryName) -> Result<bool, PublishError> {
        let Some(handle) = self.handles().remove(repository) else { return Ok(false) };
        let (done, answer) = oneshot::channel();
        handle.requests.send(Request::Confirm(done)).await.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)?
    }
}
