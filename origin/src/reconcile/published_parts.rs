//! What services have published, as parts of others: whichever origin owns them, it is read from the store. All of this blocks.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::runtime::Handle;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{Publisher, Suspension};
use weir_source::{PartTarballs, Service, ServiceFailure, SourceContext, Tree};
use weir_tarball::Limits;
use weir_upstream::free_disk;

use crate::tar_reader::TarReader;

/// The greatest age of another owner's record that is used, once a version of the part was.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What services have published.
pub(super) struct PublishedParts {
    publisher: Arc<Publisher>,
    sources: Arc<SourceContext>,
    unpacked: PartTarballs,
    runtime: Handle,
}

impl PublishedParts {
    /// Must be called within the runtime.
    pub(super) fn new(publisher: Arc<Publisher>, sources: Arc<SourceContext>) -> Self {
        let unpacked = PartTarballs::new(sources.data_dir.parts());
        Self { publisher, sources, unpacked, runtime: Handle::current() }
    }

    /// The version in force of a service. While its record is damaged, nobody knows whether it is.
    /// `is_used`: one was used before; else an owner before this one may have used a newer one than this copy has.
    pub(super) fn current(&self, service: &ServiceName, is_used: bool) -> Result<Arc<Descriptor>, ServiceFailure> {
        let failed = |reason| ServiceFailure::transient("resolve", reason);
        let repositories = &self.publisher.repositories;
        // Of another owner it is read again, because an older copy would take the composed service back.
        let of_others = |repository: &RepositoryName| repositories.fence(repository).is_none();
        let all = if repositories.is_in_cluster() { repositories.repositories_of(service) } else { Vec::new() };
        for repository in all.into_iter().filter(of_others) {
            let max_age = if is_used { MAX_AGE } else { Duration::ZERO };
            let read = self.runtime.block_on(self.publisher.ownership.refresh(&repository, max_age));
            read.map_err(|error| failed(format!("the record of repository `{repository}`: {error}")))?;
        }
        let (repository, current) =
            repositories.current(service).ok_or_else(|| failed("it has no published version yet".to_owned()))?;
        match repositories.suspension(&repository) {
            None => Ok(current),
            Some(Suspension { reason, .. }) => Err(failed(format!("the state of repository `{repository}`: {reason}"))),
        }
    }

    /// A version that is in force or retained.
    pub(super) fn version(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Descriptor, ServiceFailure> {
        let read = self.runtime.block_on(self.publisher.queries.version(repository, service, digest));
        let gone = || ServiceFailure::transient("build", format!("its version `{digest}` is not stored any more"));
        read.map_err(ServiceFailure::from)?.ok_or_else(gone)
    }

    /// The files of a version.
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
