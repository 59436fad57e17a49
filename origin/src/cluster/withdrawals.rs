//! Asks the owners of other repositories to give services up, before a repository of this origin publishes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use weir_protocol::descriptor::Generation;
use weir_protocol::name::{NodeName, RepositoryName, ServiceName};

use super::replicas::SharedRead;
use super::{Cluster, Owner, Unreadable, owner};
use crate::member_client::{MemberClient, MemberError};
use crate::publish::{PublishError, Publisher};

/// Services of one repository that are asked for at a time. An owner writes all that wait at once.
const CONCURRENT_REQUESTS: usize = 64;

/// Why a repository has not given a service up. It may have: asking again does no harm.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WithdrawError {
    #[error("no origin owns it now")]
    NoOwner,
    #[error("its owner {0} was asked, but {1}")]
    Unreachable(NodeName, MemberError),
    #[error(transparent)]
    Failed(#[from] PublishError),
}

/// Clones are cheap.
#[derive(Clone)]
pub(crate) struct Withdrawals {
    cluster: Cluster,
    publisher: Arc<Publisher>,
    client: Arc<MemberClient>,
    read_of_all: Arc<SharedRead>,
}

impl Withdrawals {
    pub(crate) fn new(cluster: Cluster, publisher: Arc<Publisher>, client: Arc<MemberClient>) -> Self {
        Self { cluster, publisher, client, read_of_all: Arc::default() }
    }

    /// Has the owner of a repository mark a service as moving away, and returns the last generation there. By the record
    /// that is known: read it first.
    ///
    /// # Errors
    /// It is not known whether the service is marked.
    pub(crate) async fn withdraw(
        &self,
        from: &RepositoryName,
        service: &ServiceName,
    ) -> Result<Generation, WithdrawError> {
        match owner(&self.cluster.view(), from, self.publisher.claim(from).as_ref()) {
            Owner::Me => Ok(self.publisher.withdraw_service(from, service).await?),
            Owner::Other(member) => {
                let withdrawn = self.client.withdraw(&member.url, from, service).await;
                withdrawn.map_err(|error| WithdrawError::Unreachable(member.name, error))
            }
            Owner::Nobody => Err(WithdrawError::NoOwner),
        }
    }

    /// Lets an owned repository publish services: those that it does not hold are taken from all other repositories that
    /// know them. Returns those that it may not publish yet, with the reasons.
    pub(crate) async fn acquire(
        &self,
        repository: &RepositoryName,
        services: &[ServiceName],
    ) -> BTreeMap<ServiceName, PublishError> {
        let unheld = self.publisher.unheld(repository, services);
        if unheld.is_empty() {
            return BTreeMap::new();
        }
        // Before the others are asked: who asks this origin meanwhile comes after them.
        let withdrawals = self.publisher.withdrawals(repository);
        if let Err(Unreadable) = self.read_of_all.run(Duration::ZERO, self.publisher.refresh_all()).await {
            let error = PublishError::Record(Unreadable.to_string());
            return unheld.into_iter().map(|service| (service, error.clone())).collect();
        }
        let outdated = self.publisher.outdated(repository);
        let asked = unheld.into_iter().map(|service| async {
            let last = if outdated.contains(&service) {
                Err(PublishError::Moving(service.clone()))
            } else {
                self.take(repository, &service).await
            };
            (service, last)
        });
        let asked: Vec<_> = stream::iter(asked).buffer_unordered(CONCURRENT_REQUESTS).collect().await;
        let (mut adopted, mut refused) = (Vec::new(), BTreeMap::new());
        for (service, last) in asked {
            match last {
                Ok(last) => adopted.push((service, last)),
                Err(error) => drop(refused.insert(service, error)),
            }
        }
        if let Err(error) = self.publisher.adopt(repository, adopted.clone(), withdrawals).await {
            refused.extend(adopted.into_iter().map(|(service, _)| (service, error.clone())));
        }
        refused
    }

    /// Takes a service from all other repositories. Returns its last generation there; 0 if it has none.
    async fn take(&self, to: &RepositoryName, service: &ServiceName) -> Result<Generation, PublishError> {
        // Two members with different files would both publish it, or take it from each other.
        if !self.publisher.defines(to, service) && !self.cluster.view().agree {
            return Err(PublishError::FilesDiffer(service.clone()));
        }
        let mut last = 0;
        for from in self.publisher.elsewhere(to, service) {
            let refused =
                |why: String| PublishError::NotWithdrawn { service: service.clone(), from: from.clone(), why };
            let there = self.withdraw(&from, service).await.map_err(|error| refused(error.to_string()))?;
            last = there.max(last);
        }
        Ok(last)
    }
}
