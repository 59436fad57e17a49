//! What a repository has to do with the name of a service: see `names.rs` of [`weir_ownership`].
//!
//! A repository publishes the next generation of a service that it *holds*: it has the current version, and is not withdrawn.
//! For any other service it takes the name first. When the service moves, its row is withdrawn in the one order of its
//! writer, and only then the name is passed on, so two repositories never hold a service at once.

use std::sync::atomic::Ordering;

use weir_protocol::descriptor::Generation;
use weir_protocol::name::{RepositoryName, ServiceName};

use super::draft::Draft;
use super::error::PublishError;
use super::known::KnownService;
use super::publisher::Publisher;

impl Publisher {
    /// Withdraws services of an owned repository: from then on they are not published, rolled back, pinned or raised to the
    /// floor there, also by the next owner. Returns for each what its next repository publishes above.
    ///
    /// # Errors
    /// This origin does not own the repository, or the record cannot be written.
    pub(crate) async fn withdraw_services(
        &self,
        repository: &RepositoryName,
        services: Vec<ServiceName>,
    ) -> Result<Vec<Generation>, PublishError> {
        let handle = self.existing(repository).ok_or_else(|| PublishError::NotOwner(repository.clone()))?;
        let (of, names) = (handle.repository.clone(), services.clone());
        let withdraw = move |draft: &mut Draft<'_>| {
            of.withdrawals.fetch_add(1, Ordering::SeqCst);
            let last: Result<Vec<_>, PublishError> = names.iter().map(|name| draft.withdraw(name)).collect();
            Ok::<_, PublishError>((last?, Vec::new()))
        };
        self.change(&handle, services, withdraw).await
    }

    /// Those of the services that a repository does not hold.
    pub(crate) fn unheld(&self, repository: &RepositoryName, services: &[ServiceName]) -> Vec<ServiceName> {
        let holds = |service: &&ServiceName| self.known_service(repository, service, |known| known.holds());
        services.iter().filter(|service| !holds(service).unwrap_or(false)).cloned().collect()
    }

    /// Another repository whose record stores a document of operators for the service.
    pub(crate) fn defined_elsewhere(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
    ) -> Option<RepositoryName> {
        self.shared.homes.other(service, repository)
    }

    /// Whether the record of a repository has a document of operators for the service.
    pub(crate) fn defines(&self, repository: &RepositoryName, service: &ServiceName) -> bool {
        self.known_service(repository, service, |known| known.defined_at.is_some()).unwrap_or(false)
    }

    /// Whether a service moves away from a repository.
    pub(crate) fn is_withdrawn(&self, repository: &RepositoryName, service: &ServiceName) -> bool {
        self.known_service(repository, service, |known| known.is_moving).unwrap_or(false)
    }

    /// Whether a repository has a published version or a document of the service.
    pub(crate) fn has(&self, repository: &RepositoryName, service: &ServiceName) -> bool {
        self.known_service(repository, service, KnownService::is_present).unwrap_or(false)
    }

    /// The services that a repository has, and whether they are withdrawn.
    pub(crate) fn present(&self, repository: &RepositoryName) -> Vec<(ServiceName, bool)> {
        let Some(handle) = self.existing(repository) else { return Vec::new() };
        let known = handle.repository.known();
        let present = known.services.iter().filter(|(_, known)| known.is_present());
        present.map(|(service, known)| (service.clone(), known.is_moving)).collect()
    }

    /// Whether a service has a published version in a repository that it does not move away from.
    pub(crate) fn is_published(&self, service: &ServiceName) -> bool {
        self.repositories_of(service).iter().any(|repository| !self.is_withdrawn(repository, service))
    }

    /// The last generation of a service in a repository; 0 if it has none.
    pub(crate) fn last_generation(&self, repository: &RepositoryName, service: &ServiceName) -> Generation {
        self.known_service(repository, service, |known| known.generation).unwrap_or_default()
    }

    /// The fence of a repository that this origin owns.
    pub(crate) fn fence(&self, repository: &RepositoryName) -> Option<u64> {
        self.existing(repository)?.repository.is_taken().then(|| self.claim(repository))?.map(|claim| claim.fence)
    }

    /// Writes the record of a repository as it is.
    ///
    /// # Errors
    /// This origin does not own the repository, or the record cannot be written.
    pub(crate) async fn confirm_ownership(&self, repository: &RepositoryName) -> Result<(), PublishError> {
        let write = |draft: &mut Draft<'_>| {
            draft.set_changed();
            Ok::<_, PublishError>(((), Vec::new()))
        };
        self.change(&self.handle(repository), Vec::new(), write).await
    }

    /// How often services were withdrawn from a repository: for [`Publisher::adopt`].
    pub(crate) fn withdrawals(&self, repository: &RepositoryName) -> u64 {
        self.existing(repository).map_or(0, |handle| handle.repository.withdrawals.load(Ordering::SeqCst))
    }

    /// Lets an owned repository publish services whose names it took, above their last generations in others. `withdrawals`: as
    /// counted before that.
    ///
    /// # Errors
    /// A service was withdrawn since then, this origin does not own the repository, or the record cannot be
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
