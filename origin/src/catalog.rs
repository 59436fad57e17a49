//! What the origin is configured to serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::descriptor::Generation;
use weir_shared::name::{RepositoryName, ServiceName};

use crate::repository_agent::{Handle, Health};
use crate::service::Service;

/// Repositories and services by their names. It does not change while the process runs.
pub(crate) struct Catalog {
    repositories: BTreeMap<RepositoryName, Handle>,
    services: BTreeMap<ServiceName, Arc<Service>>,
    retired: Vec<(ServiceName, Generation)>,
}

impl Catalog {
    /// A catalogue of these. `retired`: the services that are not configured any more since this start.
    pub(crate) fn new(
        repositories: BTreeMap<RepositoryName, Handle>,
        services: BTreeMap<ServiceName, Arc<Service>>,
        retired: Vec<(ServiceName, Generation)>,
    ) -> Self {
        Self { repositories, services, retired }
    }

    /// A repository's agent.
    pub(crate) fn repository(&self, name: &RepositoryName) -> Option<&Handle> {
        self.repositories.get(name)
    }

    /// A service.
    pub(crate) fn service(&self, name: &ServiceName) -> Option<&Arc<Service>> {
        self.services.get(name)
    }

    /// All repositories, by name.
    pub(crate) fn repositories(&self) -> impl Iterator<Item = (&RepositoryName, &Handle)> {
        self.repositories.iter()
    }

    /// All services, by name.
    pub(crate) fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// The services that are not configured any more since this start, each with its last generation.
    pub(crate) fn retired(&self) -> &[(ServiceName, Generation)] {
        &self.retired
    }

    /// Ready: every service is published, or its repository was tried. The reason when not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let waiting = self.services().find(|service| {
            service.current().is_none()
                && self.repository(&service.repository).is_some_and(|agent| {
                    let state = agent.state();
                    state.attempts == 0 && !matches!(state.health, Health::Unhealthy { .. })
                })
        });
        match waiting {
            None => Ok(()),
            Some(service) => Err(format!(
                "service `{}` is not published yet and repository `{}` has not finished its first poll",
                service.name, service.repository
            )),
        }
    }
}
