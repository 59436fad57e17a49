//! What repositories of this origin do with the names of services: they take them before anything is defined or published,
//! pass them on when a service moves, and free them when a service is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use weir_ownership::{NameAnswer, NameChange, NameRequest};
use weir_protocol::descriptor::Generation;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{DefinitionChange, PublishError, Publisher, Repositories};

use super::name_records::{NameRecords, NamesUnavailable};

/// How often names are requested that another repository has, and the pause. After that the next poll requests them.
const ATTEMPTS: usize = 5;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A service in a repository.
type Place = (RepositoryName, ServiceName);

/// Clones are cheap.
#[derive(Clone)]
pub(crate) struct ServiceNames {
    /// Whether all members have the same configuration files now.
    agree: Arc<dyn Fn() -> bool + Send + Sync>,
    publisher: Arc<Publisher>,
    repositories: Arc<Repositories>,
    records: NameRecords,
    in_use: Arc<Mutex<InUse>>,
}

/// What this process does with names now. Locked while names are freed, so that none is freed that is being taken.
#[derive(Default)]
struct InUse {
    /// Names that were taken here, and that may be without a row.
    taken: BTreeMap<RepositoryName, BTreeSet<ServiceName>>,
    /// Requests of operators in progress, and whether they move the service away: nothing else frees these names, or takes
    /// them back from a move.
    edits: Vec<(Place, bool)>,
}

/// An operator's request is in progress.
pub(crate) struct NameEdit {
    edit: (Place, bool),
    in_use: Arc<Mutex<InUse>>,
}

impl InUse {
    fn is_edited(&self, place: &Place) -> bool {
        self.edits.iter().any(|(edited, _)| edited == place)
    }

    fn is_moving(&self, place: &Place) -> bool {
        self.edits.iter().any(|(edited, is_move)| *is_move && edited == place)
    }
}

impl Drop for NameEdit {
    fn drop(&mut self) {
        let edits = &mut lock(&self.in_use).edits;
        if let Some(index) = edits.iter().position(|edit| *edit == self.edit) {
            edits.swap_remove(index);
        }
    }
}

fn lock(in_use: &Mutex<InUse>) -> MutexGuard<'_, InUse> {
    in_use.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<NamesUnavailable> for PublishError {
    fn from(error: NamesUnavailable) -> Self {
        Self::Record(error.to_string())
    }
}

impl ServiceNames {
    pub(crate) fn new(
        agree: Arc<dyn Fn() -> bool + Send + Sync>,
        publisher: Arc<Publisher>,
        records: NameRecords,
    ) -> Self {
        let repositories = publisher.repositories.clone();
        Self { agree, publisher, repositories, records, in_use: Arc::default() }
    }

    /// The repository that has the name of a service now.
    pub(crate) async fn home(&self, service: &ServiceName) -> Result<Option<RepositoryName>, NamesUnavailable> {
        self.records.holder(service).await
    }

    /// Begins an operator's request. `is_move`: it moves the service away from the repository.
    pub(crate) fn edit(&self, repository: &RepositoryName, service: &ServiceName, is_move: bool) -> NameEdit {
        let edit = ((repository.clone(), service.clone()), is_move);
        lock(&self.in_use).edits.push(edit.clone());
        NameEdit { edit, in_use: self.in_use.clone() }
    }

    /// Lets an owned repository define and publish a service. Hold [`ServiceNames::edit`] until it is defined.
    ///
    /// # Errors
    /// [`PublishError::HeldElsewhere`], or the names or the record cannot be written.
    pub(crate) async fn take(&self, repository: &RepositoryName, service: &ServiceName) -> Result<(), PublishError> {
        if self.repositories.defines(repository, service) && !self.repositories.is_withdrawn(repository, service) {
            return Ok(());
        }
        let withdrawals = self.repositories.withdrawals(repository);
        let taken = self.take_all(repository, vec![service.clone()]).await?;
        let adopted =
            taken.into_iter().map(|(service, last)| Ok((service, last?))).collect::<Result<_, PublishError>>()?;
        self.publisher.adopt(repository, adopted, withdrawals).await
    }

    /// Lets an owned repository publish services, above their last generations in others. Returns those that it may not
    /// publish now, with the reasons.
    pub(crate) async fn acquire(
        &self,
        repository: &RepositoryName,
        services: &[ServiceName],
    ) -> BTreeMap<ServiceName, PublishError> {
        let mut refused = BTreeMap::new();
        let agree = (self.agree)();
        let mut unheld = self.repositories.unheld(repository, services);
        unheld.retain(|service| {
            let why = if lock(&self.in_use).is_moving(&(repository.clone(), service.clone())) {
                PublishError::Moving(service.clone())
            } else if !agree && !self.repositories.defines(repository, service) {
                // Two members with different files would both publish it, or take it from each other.
                PublishError::FilesDiffer(service.clone())
            } else {
                return true;
            };
            refused.insert(service.clone(), why);
            false
        });
        if unheld.is_empty() {
            return refused;
        }
        let withdrawals = self.repositories.withdrawals(repository);
        let mut adopted = Vec::new();
        for attempt in 1..=ATTEMPTS {
            let taken = match self.take_all(repository, unheld.clone()).await {
                Ok(taken) => taken,
                Err(error) => unheld.drain(..).map(|service| (service, Err(error.clone()))).collect(),
            };
            unheld.clear();
            for (service, last) in taken {
                match last {
                    Ok(last) => adopted.push((service, last)),
                    // The files have moved it, and the owner of its old repository passes it on.
                    Err(PublishError::HeldElsewhere { .. })
                        if attempt < ATTEMPTS && !self.repositories.defines(repository, &service) =>
                    {
                        unheld.push(service);
                    }
                    Err(error) => drop(refused.insert(service, error)),
                }
            }
            if unheld.is_empty() {
                break;
            }
            sleep(RETRY_AFTER).await;
        }
        if let Err(error) = self.publisher.adopt(repository, adopted.clone(), withdrawals).await {
            refused.extend(adopted.into_iter().map(|(service, _)| (service, error.clone())));
        }
        refused
    }

    async fn take_all(
        &self,
        repository: &RepositoryName,
        services: Vec<ServiceName>,
    ) -> Result<Vec<(ServiceName, Result<Generation, PublishError>)>, PublishError> {
        let fence = self.fence(repository)?;
        let request = |name: &ServiceName| NameRequest {
            name: name.clone(),
            repository: repository.clone(),
            fence,
            change: NameChange::Take,
        };
        lock(&self.in_use).taken.entry(repository.clone()).or_default().extend(services.iter().cloned());
        let answers = self.records.request(services.iter().map(request).collect()).await?;
        let result = |(service, answer): (ServiceName, NameAnswer)| {
            let last = match answer {
                NameAnswer::Done { last } => Ok(last),
                NameAnswer::HeldBy(by) => Err(PublishError::HeldElsewhere { service: service.clone(), by }),
                NameAnswer::Superseded => Err(PublishError::NotOwner(repository.clone())),
            };
            (service, last)
        };
        Ok(services.into_iter().zip(answers).map(result).collect())
    }

    /// Withdraws services of an owned repository, and lets other repositories take their names.
    ///
    /// # Errors
    /// The record or the names cannot be written. The same again does no harm.
    pub(crate) async fn pass_on(
        &self,
        from: &RepositoryName,
        services: Vec<(ServiceName, RepositoryName)>,
    ) -> Result<(), PublishError> {
        let names = services.iter().map(|(service, _)| service.clone()).collect();
        // Before the record is written: another owner may have taken the services back since.
        let fence = self.fence(from)?;
        let last = self.publisher.withdraw_services(from, names).await?;
        let request = |((name, to), last): ((ServiceName, RepositoryName), Generation)| NameRequest {
            name,
            repository: from.clone(),
            fence,
            change: NameChange::PassOn { to, last },
        };
        // One that another repository has already is passed on to nobody.
        self.records.request(services.into_iter().zip(last).map(request).collect()).await?;
        Ok(())
    }

    /// Removes the document of a service that has moved, before the move is acknowledged: a restart would restore it, should
    /// the service be deleted meanwhile. What fails is tried again by the catalog.
    pub(crate) async fn forget(&self, repository: &RepositoryName, service: &ServiceName) {
        if self.repositories.defined_elsewhere(repository, service).is_none()
            || !self.repositories.defines(repository, service)
        {
            return;
        }
        let change = DefinitionChange { repository: None, services: vec![(service.clone(), None)] };
        if let Err(error) = self.publisher.define(repository, change).await {
            tracing::warn!(%repository, %service, %error, "a moved service is still stored in its old repository");
        }
    }

    /// Frees the names of services that an owned repository has removed just now. What fails is freed later.
    pub(crate) async fn free(&self, repository: &RepositoryName, services: Vec<ServiceName>) {
        if let Err(error) = self.free_unused(repository, services, |_| false).await {
            tracing::warn!(%repository, %error, "names of deleted services are not free yet; the origin tries again");
        }
    }

    /// Frees a name that was taken in vain.
    pub(crate) async fn give_back(&self, repository: &RepositoryName, service: &ServiceName) {
        // Only the owner can: who was superseded frees nothing.
        if self.repositories.has(repository, service) || self.publisher.confirm_ownership(repository).await.is_err() {
            return;
        }
        self.free(repository, vec![service.clone()]).await;
    }

    /// Frees what an owned repository neither has nor defines. Its record was written since anything else could be true.
    async fn free_unused(
        &self,
        repository: &RepositoryName,
        services: Vec<ServiceName>,
        is_defined: impl Fn(&ServiceName) -> bool,
    ) -> Result<(), PublishError> {
        let fence = self.fence(repository)?;
        let (mut freed, mut requests) = (Vec::new(), Vec::new());
        let answers = {
            let mut in_use = lock(&self.in_use);
            for name in services {
                let place = (repository.clone(), name);
                if in_use.is_edited(&place) || is_defined(&place.1) || self.repositories.has(repository, &place.1) {
                    continue;
                }
                let change = NameChange::Free { last: self.repositories.last_generation(repository, &place.1) };
                let name = place.1;
                requests.push(NameRequest { name: name.clone(), repository: repository.clone(), fence, change });
                freed.push(name);
            }
            // If they cannot be freed now, they are freed later.
            in_use.taken.entry(repository.clone()).or_default().extend(freed.iter().cloned());
            self.records.begin(requests)
        };
        answers.await?;
        if let Some(names) = lock(&self.in_use).taken.get_mut(repository) {
            freed.iter().for_each(|name| _ = names.remove(name));
        }
        Ok(())
    }

    /// Forgets which names were taken here, but those that the repository has no row for.
    fn forget_used(&self, repository: &RepositoryName) {
        let taken = &mut lock(&self.in_use).taken;
        if let Some(names) = taken.get_mut(repository) {
            names.retain(|name| !self.repositories.has(repository, name));
        }
        taken.retain(|_, names| !names.is_empty());
    }

    /// Whether a name was taken here for an owned repository that neither has nor defines it. `home`: the repository that
    /// defines a service.
    pub(crate) fn has_unused(
        &self,
        repository: &RepositoryName,
        home: impl Fn(&ServiceName) -> Option<RepositoryName>,
    ) -> bool {
        let is_unused =
            |name: &ServiceName| home(name).as_ref() != Some(repository) && !self.repositories.has(repository, name);
        lock(&self.in_use).taken.get(repository).is_some_and(|names| names.iter().any(is_unused))
    }

    /// Brings the names of an owned repository in line with its record and the definitions: passes on what the files have
    /// moved, takes what an earlier version published, withdraws what belongs elsewhere, and frees what is not used. Returns
    /// false if that is to be done again soon: the members do not have the same files. `max_age`: of what is read of all names.
    /// `home`: the repository that defines a service now.
    ///
    /// # Errors
    /// The record or the names cannot be read or written.
    pub(crate) async fn settle(
        &self,
        repository: &RepositoryName,
        max_age: Duration,
        home: impl Fn(&ServiceName) -> Option<RepositoryName>,
    ) -> Result<bool, PublishError> {
        let all = self.records.all(max_age).await?;
        let has_it = |service: &ServiceName| all.holder(service) == Some(repository);
        let is_elsewhere = |service: &ServiceName| all.holder(service).is_some_and(|by| by != repository);
        let (mut moved, mut without) = (Vec::new(), Vec::new());
        for (service, is_withdrawn) in self.repositories.present(repository) {
            match home(&service).filter(|home| home != repository) {
                // It is passed on already, and taken.
                _ if is_withdrawn && is_elsewhere(&service) => {}
                Some(to) => moved.push((service, to)),
                None if !is_withdrawn && !has_it(&service) => without.push(service),
                None => {}
            }
        }
        let is_complete = moved.is_empty() || (self.agree)();
        if is_complete && !moved.is_empty() {
            self.pass_on(repository, moved).await?;
        }
        if !without.is_empty() {
            let taken = self.take_all(repository, without).await?;
            let is_refused = |last: &_| matches!(last, Err(PublishError::HeldElsewhere { .. }));
            let elsewhere: Vec<_> =
                taken.into_iter().filter(|(_, last)| is_refused(last)).map(|(service, _)| service).collect();
            if !elsewhere.is_empty() {
                let services = elsewhere.len();
                tracing::error!(%repository, services, "services are withdrawn: other repositories have their names");
                self.publisher.withdraw_services(repository, elsewhere).await?;
            }
        }
        let is_defined = |service: &ServiceName| home(service).as_ref() == Some(repository);
        self.forget_used(repository);
        let taken_here = lock(&self.in_use).taken.get(repository).cloned().unwrap_or_default();
        let held = all.of_repository(repository).iter().cloned();
        let unused: BTreeSet<_> = held
            .chain(taken_here)
            .filter(|name| !is_defined(name) && !self.repositories.has(repository, name))
            .collect();
        if unused.is_empty() {
            return Ok(is_complete);
        }
        // Only the owner can: whoever was superseded frees nothing.
        self.publisher.confirm_ownership(repository).await?;
        self.free_unused(repository, unused.into_iter().collect(), is_defined).await?;
        Ok(is_complete)
    }

    fn fence(&self, repository: &RepositoryName) -> Result<u64, PublishError> {
        self.repositories.fence(repository).ok_or_else(|| PublishError::NotOwner(repository.clone()))
    }
}
