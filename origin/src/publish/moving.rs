//! Services that move from one repository to another: the owner of the old one marks the row, and the owner of the new one
//! publishes above the last generation there.
//!
//! A repository publishes the next generation of a service that it *holds*: it has the current version, and no mark. A
//! repository that does not hold a service first asks the owners of all others that know it. Whoever is asked marks its row
//! in the one order of its writer, so two repositories never hold a service at once.

use std::sync::atomic::Ordering;

use weir_protocol::descriptor::Generation;
use weir_protocol::name::{RepositoryName, ServiceName};

use super::draft::Draft;
use super::error::PublishError;
use super::publisher::Publisher;

impl Publisher {
    /// Marks a service of an owned repository as moving: from then on it is not published, rolled back, pinned or raised to
    /// the floor there, also by the next owner. Returns its last generation there; 0 if it has none.
    ///
    /// # Errors
    /// This origin does not own the repository, or the record cannot be written.
    pub(crate) async fn withdraw_service(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
    ) -> Result<Generation, PublishError> {
        let handle = self.existing(repository).ok_or_else(|| PublishError::NotOwner(repository.clone()))?;
        let (of, name) = (handle.repository.clone(), service.clone());
        let withdraw = move |draft: &mut Draft<'_>| {
            of.withdrawals.fetch_add(1, Ordering::SeqCst);
            Ok::<_, PublishError>((draft.withdraw(&name)?, Vec::new()))
        };
        self.change(&handle, vec![service.clone()], withdraw).await
    }

    /// Those of the services that a repository does not hold.
    pub(crate) fn unheld(&self, repository: &RepositoryName, services: &[ServiceName]) -> Vec<ServiceName> {
        let holds = |service: &&ServiceName| self.known_service(repository, service, |known| known.holds());
        services.iter().filter(|service| !holds(service).unwrap_or(false)).cloned().collect()
    }

    /// The other repositories that know a service, even if it is deleted there.
    pub(crate) fn elsewhere(&self, repository: &RepositoryName, service: &ServiceName) -> Vec<RepositoryName> {
        let knows = |name: &RepositoryName| self.known_service(name, service, |_| ()).is_some();
        self.handles().into_keys().filter(|name| name != repository && knows(name)).collect()
    }

    /// Whether the record of a repository has a document of operators for the service.
    pub(crate) fn defines(&self, repository: &RepositoryName, service: &ServiceName) -> bool {
        self.known_service(repository, service, |known| known.defined_at.is_some()).unwrap_or(false)
    }

    /// How many services were asked to move away from a repository: for [`Publisher::adopt`].
    pub(crate) fn withdrawals(&self, repository: &RepositoryName) -> u64 {
        self.existing(repository).map_or(0, |handle| handle.repository.withdrawals.load(Ordering::SeqCst))
    }

    /// Lets an owned repository publish services, above their last generations in others. `withdrawals`: as counted before
    /// the others were asked.
    ///
    /// # Errors
    /// A service was asked to move away since then, this origin does not own the repository, or the record cannot be
    /// written.
    pub(crate) async fn adopt(
        &self,
        repository: &RepositoryName,
        services: Vec<(ServiceName, Generation)>,
        withdrawals: u64,
    ) -> Result<(), PublishError> {
        let differs = |(service, last): &(ServiceName, Generation)| {
            let differs = self.known_service(repository, service, |known| known.is_moving || known.generation < *last);
            differs.unwrap_or(*last > 0)
        };
        let services: Vec<_> = services.into_iter().filter(differs).collect();
        let Some((first, _)) = services.first().cloned() else { return Ok(()) };
        let handle = self.handle(repository);
        let (of, names) = (handle.repository.clone(), services.iter().map(|(service, _)| service.clone()).collect());
        let adopt = move |draft: &mut Draft<'_>| {
            if of.withdrawals.load(Ordering::SeqCst) != withdrawals {
                return Err(PublishError::Moving(first));
            }
            services.iter().try_for_each(|(service, last)| draft.adopt(service, *last))?;
            Ok(((), Vec::new()))
        };
        self.change(&handle, names, adopt).await
    }
}
