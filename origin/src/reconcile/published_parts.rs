//! What services have published, as parts of others: whichever origin owns them, it is read from the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::runtime::Handle;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{Publisher, Suspension};
use weir_runtime::bounds::Bounds;
use weir_source::{PartTarballs, Service, ServiceFailure, SourceContext, Tree};
use weir_tarball::Limits;
use weir_upstream::free_disk;

use crate::names::ServiceNames;
use crate::tar_reader::TarReader;

/// The greatest age of another owner's record that is used, once a version of the part was.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Parts whose records a repository reads at a time.
const CONCURRENT_READS: usize = 8;

/// The versions in force of the services that are parts, or why there is none.
pub(super) type PartVersions = HashMap<ServiceName, Result<Arc<Descriptor>, ServiceFailure>>;

/// What services have published.
pub(super) struct PublishedParts {
    publisher: Arc<Publisher>,
    sources: Arc<SourceContext>,
    unpacked: Arc<PartTarballs>,
    /// Unset: this origin is the only one.
    pub(super) names: OnceLock<ServiceNames>,
    pub(super) runtime: Handle,
}

impl PublishedParts {
    /// Must be called within the runtime.
    pub(super) fn new(publisher: Arc<Publisher>, sources: Arc<SourceContext>) -> Self {
        let unpacked = Arc::new(PartTarballs::new(sources.data_dir.parts(), sources.upstreams.max_mirror.as_u64()));
        Self { publisher, sources, unpacked, names: OnceLock::new(), runtime: Handle::current() }
    }

    /// Shows the disk space of what is unpacked.
    pub(super) fn show(&self, bounds: &Bounds) {
        let (unpacked, limit) = (self.unpacked.clone(), self.sources.upstreams.max_mirror.as_u64());
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        bounds.show("unpacked_part_bytes", limit, move || unpacked.bytes() as usize);
    }

    /// The versions in force of all parts that are services.
    pub(super) async fn versions(&self, composed: &[Arc<Service>]) -> PartVersions {
        let mut parts = BTreeMap::new();
        for part in composed.iter().flat_map(|service| &service.parts) {
            if let Some(service) = part.of_service() {
                *parts.entry(service.clone()).or_insert(true) &= part.used_generation().is_some();
            }
        }
        let read = parts.into_iter().map(|(service, is_used)| async move {
            let current = self.current(&service, is_used).await;
            (service, current)
        });
        stream::iter(read).buffer_unordered(CONCURRENT_READS).collect().await
    }

    /// The version in force of a service. While its record is damaged, nobody knows whether it is.
    /// `is_used`: one was used before; else an owner before this one may have used a newer one than this copy has.
    async fn current(&self, service: &ServiceName, is_used: bool) -> Result<Arc<Descriptor>, ServiceFailure> {
        let failed = |reason| ServiceFailure::transient("resolve", reason);
        let repositories = &self.publisher.repositories;
        let max_age = if is_used { MAX_AGE } else { Duration::ZERO };
        for repository in repositories.repositories_of(service) {
            self.read(&repository, max_age).await?;
        }
        if repositories.current(service).is_none()
            && let Some(names) = self.names.get()
        {
            // It has moved to a repository that this origin has not read since, or it is new there.
            let home = names.home(service).await.map_err(|error| failed(error.to_string()))?;
            if let Some(home) = home {
                self.read(&home, MAX_AGE).await?;
            }
        }
        let current = repositories.current(service);
        let (repository, current) = current.ok_or_else(|| failed(repositories.why_unpublished(service).to_owned()))?;
        match repositories.suspension(&repository) {
            None => Ok(current),
            Some(Suspension { reason, .. }) => Err(failed(format!("the state of repository `{repository}`: {reason}"))),
        }
    }

    /// Reads the record of another owner again, because an older copy would take the composed service back.
    async fn read(&self, repository: &RepositoryName, max_age: Duration) -> Result<(), ServiceFailure> {
        let repositories = &self.publisher.repositories;
        if !repositories.is_in_cluster() || repositories.fence(repository).is_some() {
            return Ok(());
        }
        let failed = |error| format!("the record of repository `{repository}`: {error}");
        let read = self.publisher.ownership.refresh(repository, max_age).await;
        read.map_err(|error| ServiceFailure::transient("resolve", failed(error)))
    }

    /// A version that is in force or retained, in this repository or in one that the service has moved to. Blocks.
    pub(super) fn version(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Descriptor, ServiceFailure> {
        let others = self.publisher.repositories.repositories_of(service).into_iter().filter(|of| of != repository);
        for of in std::iter::once(repository.clone()).chain(others) {
            let version = self.runtime.block_on(self.publisher.queries.version(&of, service, digest));
            if let Some(version) = version.map_err(ServiceFailure::from)? {
                return Ok(version);
            }
        }
        Err(ServiceFailure::transient("build", format!("its version `{digest}` is not stored any more")))
    }

    /// The files of a version. Blocks.
    pub(super) fn tree<'a>(
        &self,
        part: &'a Service,
        version: &Descriptor,
        limits: &Limits,
        stop: &AtomicBool,
    ) -> Result<Tree<'a>, ServiceFailure> {
        let (publication, sources) = (version.publication(), &self.sources);
        let needed = sources.min_free.saturating_add(publication.size);
        free_disk::require_room(&sources.data_dir, needed)
            .map_err(|reason| ServiceFailure::transient("store", reason))?;
        let objects = self.publisher.repositories.objects();
        let tar = self.runtime.block_on(TarReader::list(objects, version));
        let tar = tar.map_err(|error| ServiceFailure::transient("store", error.to_string()))?;
        let tar = (publication.sha256, tar.blocking(self.runtime.clone()));
        self.unpacked.unpack(part, tar, limits, stop)
    }
}
