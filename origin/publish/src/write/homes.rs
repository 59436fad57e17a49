//! Which repositories store a document of operators for a service: for a while after a move there are two.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use weir_protocol::name::{RepositoryName, ServiceName};

/// When each document was written, in Unix milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Homes(RwLock<HashMap<ServiceName, Vec<(RepositoryName, u64)>>>);

impl Homes {
    /// Notes the document of a repository. `None`: it has none any more.
    pub(crate) fn set(&self, service: &ServiceName, repository: &RepositoryName, written_at: Option<u64>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let homes = all.entry(service.clone()).or_default();
        homes.retain(|(of, _)| of != repository);
        homes.extend(written_at.map(|at| (repository.clone(), at)));
        if homes.is_empty() {
            all.remove(service);
        }
    }

    /// Another repository that has a document of a service.
    pub(crate) fn other(&self, service: &ServiceName, than: &RepositoryName) -> Option<RepositoryName> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(service)?.iter().map(|(of, _)| of).find(|of| *of != than).cloned()
    }

    /// When the newest document of a service was written.
    pub(crate) fn newest(&self, service: &ServiceName) -> Option<u64> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(service)?.iter().map(|(_, at)| *at).max()
    }
}
