//! Removes a repository of a cluster that nobody defines: first what its record names, then, as garbage, its objects, and at
//! last the record. So a record never vanishes before its objects, and whoever defines the repository meanwhile keeps it.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use weir_protocol::name::{RepositoryName, ServiceName};

use super::draft::Draft;
use super::error::PublishError;
use super::publisher::Publisher;
use super::writer::{Request, Writer};
use weir_store::{Area, Listed};

impl Publisher {
    /// How long objects stay that nothing references.
    pub(crate) fn grace_period(&self) -> Duration {
        self.shared.grace_period
    }

    /// Whether a repository has no services and no document of operators.
    pub(crate) fn is_empty(&self, repository: &RepositoryName) -> bool {
        self.existing(repository).is_some_and(|handle| handle.repository.known().is_empty())
    }

    /// Takes the next step towards the removal of an empty repository that this origin owns, and that has no names. Call it
    /// again until the ownership ends.
    ///
    /// # Errors
    /// This origin does not own the repository, or the store cannot be read or written.
    pub(crate) async fn remove(&self, repository: &RepositoryName) -> Result<(), PublishError> {
        let Some(handle) = self.existing(repository) else { return Ok(()) };
        let (is_bare, services): (bool, Vec<ServiceName>) = {
            let known = handle.repository.known();
            (known.record.is_bare(), known.services.keys().cloned().collect())
        };
        if !is_bare {
            let gone = services.clone();
            let strip = move |draft: &mut Draft<'_>| {
                gone.iter().try_for_each(|service| draft.drop_tombstone(service))?;
                (draft.record.history, draft.record.mirror) = (Vec::new(), None);
                draft.set_changed();
                Ok::<_, PublishError>(((), Vec::new()))
            };
            return self.change(&handle, services, strip).await;
        }
        for area in [Area::Public, Area::Private] {
            if !self
                .objects()
                .list(repository, area)
                .await
                .map_err(|error| PublishError::Object(error.to_string()))?
                .is_empty()
            {
                handle.repository.is_dirty.store(true, Ordering::Relaxed);
                return Ok(());
            }
        }
        let (done, answer) = oneshot::channel();
        handle.requests.send(Request::Delete(done)).await.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)?
    }

    /// Forgets empty repositories of other origins that are not listed any more.
    pub(super) fn forget_removed(&self, listed: &[Listed]) {
        let listed: BTreeSet<&str> = listed.iter().map(|(key, _)| key.name()).collect();
        let mut repositories = self.repositories.write().unwrap_or_else(PoisonError::into_inner);
        repositories.retain(|name, handle| {
            let known = handle.repository.known();
            let is_removed = known.version.is_some() && known.is_empty() && !handle.repository.is_taken();
            !is_removed || listed.contains(name.as_str())
        });
    }
}

impl Writer {
    /// Deletes the record, unless it names anything. This origin writes no more, whatever comes of it.
    pub(super) async fn delete(&mut self) -> Result<(), PublishError> {
        let repository = self.repository.clone();
        let _committing = repository.committing.lock().await;
        self.resolve_outstanding().await?;
        let version = {
            let known = repository.known();
            known.version.clone().filter(|_| known.is_empty() && known.record.is_bare())
        };
        let Some(version) = version else { return Ok(()) };
        self.give_up();
        let deleted = self.shared.records.delete(&self.key, &version).await;
        // It may still be carried out: the record gets another version before anybody owns the repository again.
        self.is_deletion_unknown = deleted.is_err();
        deleted?;
        tracing::info!(repository = %repository.name, "deleted the record of a repository that nobody defines");
        Ok(())
    }
}
