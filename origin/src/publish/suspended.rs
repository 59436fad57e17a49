//! Repositories whose record or pages could not be read: nothing new is published of them until they are read again, or an
//! operator confirms what is left.

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

/// A repository that was read again, how often so far.
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
    /// The repositories of which nothing new is published until an operator confirms.
    pub(crate) fn suspended(&self) -> BTreeMap<RepositoryName, Suspension> {
        let handles = self.handles().into_iter();
        handles.filter_map(|(name, handle)| Some((name, handle.repository.suspension()?))).collect()
    }

    /// Whether operators may have defined anything that the catalogue does not have: something cannot be read, or was just
    /// read, or a record is gone.
    pub(crate) fn may_have_unknown_definitions(&self) -> bool {
        let repositories = self.repositories.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = repositories.values().any(|handle| handle.repository.may_have_unknown_definitions());
        drop(repositories);
        unknown || self.without_record() > 0
    }

    /// How many repositories have objects, and no record still.
    pub(crate) fn without_record(&self) -> usize {
        let has_none = |name: &&RepositoryName| {
            self.existing(name).is_none_or(|handle| handle.repository.known().version.is_none())
        };
        self.without_record.iter().filter(has_none).count()
    }

    /// Waits until a repository was read again.
    pub(crate) async fn read_again(&self) {
        self.shared.read_again.notified().await;
    }

    /// The repositories that were read again and not [taken over](Publisher::taken_over).
    pub(crate) fn to_take_over(&self) -> Vec<Reload> {
        let handles = self.handles().into_values().map(|Handle { repository, .. }| repository);
        let due = handles.filter_map(|repository| {
            let number = repository.read_again.load(Ordering::SeqCst);
            let is_due = number != repository.taken_over.load(Ordering::SeqCst) && !repository.is_unread();
            is_due.then_some(Reload { repository, number })
        });
        due.collect()
    }

    /// What operators defined in a repository that was read again, and what is published of it.
    ///
    /// # Errors
    /// It cannot be read just now.
    pub(crate) async fn definitions_read_again(
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

    /// The catalogue has it.
    pub(crate) fn taken_over(&self, Reload { repository, number }: &Reload) {
        repository.taken_over.store(*number, Ordering::SeqCst);
    }

    /// Why nothing new is published of one repository until an operator confirms.
    pub(crate) fn suspension(&self, repository: &RepositoryName) -> Option<Suspension> {
        self.existing(repository)?.repository.suspension()
    }

    /// An operator takes over what was read of a repository as its state: publishing goes on from there. False: it was not
    /// suspended.
    ///
    /// # Errors
    /// What is stored is not what is served, or cannot be read or written.
    pub(crate) async fn confirm(&self, repository: &RepositoryName) -> Result<bool, PublishError> {
        let Some(handle) = self.handles().remove(repository) else { return Ok(false) };
        let (done, answer) = oneshot::channel();
        handle.requests.send(Request::Confirm(done)).await.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)?
    }
}
