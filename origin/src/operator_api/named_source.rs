//! What a document of a service names, before it is known to be valid.

use serde::Deserialize;
use weir_protocol::name::{RepositoryName, ServiceName};

use super::route::Subject;

/// The sources in a document of a service, or of one of its parts.
#[derive(Deserialize)]
pub(super) struct NamedSource {
    repository: Option<RepositoryName>,
    service: Option<ServiceName>,
    #[serde(default)]
    parts: Vec<NamedSource>,
}

impl NamedSource {
    /// All repositories and services that it names.
    pub(super) fn all(self) -> (Vec<RepositoryName>, Vec<ServiceName>) {
        let (mut repositories, mut services): (Vec<_>, Vec<_>) =
            (self.repository.into_iter().collect(), self.service.into_iter().collect());
        for (more, others) in self.parts.into_iter().map(Self::all) {
            repositories.extend(more);
            services.extend(others);
        }
        (repositories, services)
    }

    /// The repository that publishes the service, or the service whose repository does.
    pub(super) fn home(mut self) -> Option<Subject> {
        let of = |repository: Option<_>, service: Option<_>| {
            repository.map(Subject::Repository).or(service.map(Subject::Service))
        };
        of(self.repository, None).or_else(|| {
            let first = (!self.parts.is_empty()).then(|| self.parts.swap_remove(0))?;
            of(first.repository, first.service)
        })
    }
}
