//! Building a version again without an agent: while no origin runs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::build::{BuildOptions, Workshop};
use super::mirror_slot::MirrorSlot;
use crate::config::{LimitsConfig, RepositoryConfig};
use crate::data_dir::DataDir;
use crate::metrics::Metrics;
use crate::publication::Reference;
use crate::publisher::Publisher;
use crate::service::Service;

/// What versions are built again with.
pub(crate) struct Restorer {
    pub(crate) limits: LimitsConfig,
    pub(crate) data_dir: DataDir,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) metrics: Metrics,
}

/// Why a version cannot be built again, in plain words.
#[derive(Debug)]
pub(crate) enum NotRestored {
    /// It may come with what the repository's next poll brings.
    Now(String),
    /// Its commit gives another content by how the service is configured now.
    Ever(String),
}

impl Restorer {
    /// Builds again what a descriptor states, by what the mirror of its repository holds.
    pub(crate) fn restore(
        &self,
        repository: &RepositoryConfig,
        service: &Service,
        stated: &Reference,
    ) -> Result<(), NotRestored> {
        let path = self.data_dir.mirror(&repository.name, &repository.url);
        let mirror = Arc::new(MirrorSlot::new(path, self.data_dir.clone()));
        if !mirror.exists() {
            return Err(NotRestored::Now(format!("there is no mirror of {}", repository.name)));
        }
        let (publisher, metrics) = (self.publisher.clone(), self.metrics.clone());
        let workshop = Workshop { mirror, publisher, options: BuildOptions::new(&self.limits), metrics };
        match workshop.rebuild(service, stated, &AtomicBool::new(false)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(NotRestored::Ever("the service is configured differently now".to_owned())),
            Err(failure) => Err(NotRestored::Now(self.data_dir.redact(&failure.reason))),
        }
    }
}
