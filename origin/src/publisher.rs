//! Where blobs and publications meet: a descriptor is published after its blob is stored, and no blob goes while a
//! descriptor names it. All of this blocks.

use std::collections::HashSet;
use std::io;
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::name::ServiceName;

use crate::blob_store::{BlobStore, TemporaryBlob};
use crate::data_dir::DataDir;
use crate::metrics::Metrics;
use crate::publication::{Change, Content, Reference, State, StateError, Statement, is_current};
use crate::service::Service;
use crate::tarball::ContentKey;

/// The blobs and the publications of an origin, and the order between them.
pub(crate) struct Publisher {
    blobs: BlobStore,
    state: State,
    /// Read: from when a blob gets its name, or is found to be there, until a descriptor names it. Written: a sweep.
    order: RwLock<()>,
    generation_floor: Generation,
    metrics: Metrics,
    /// Whoever publishes holds the directory.
    _data_dir: DataDir,
}

/// What was found or built could not be stored or published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("the blob cannot be stored: {0}")]
    Blob(#[from] io::Error),
}

impl Publisher {
    /// Opens what a data directory holds.
    pub(crate) fn open(
        data_dir: DataDir,
        generation_floor: Generation,
        metrics: Metrics,
    ) -> Result<Self, PublishError> {
        let blobs = BlobStore::open(&data_dir.blobs())?;
        let state = State::open(&data_dir.state())?;
        Ok(Self { blobs, state, order: RwLock::new(()), generation_floor, metrics, _data_dir: data_dir })
    }

    /// The blobs.
    pub(crate) fn blobs(&self) -> &BlobStore {
        &self.blobs
    }

    /// What was published before the process started, of the services that are configured. The others are retired.
    pub(crate) fn load(
        &self,
        configured: &HashSet<&str>,
        now: SystemTime,
    ) -> Result<Vec<(ServiceName, Descriptor)>, StateError> {
        let retired = self.state.retire_others(configured, now)?;
        if retired > 0 {
            tracing::info!(retired, "services that are not configured any more are not served");
        }
        self.state.all_current()
    }

    /// Publishes a content that was built before, if it was and its blob is still there. False: it must be built.
    pub(crate) fn settle_known(
        &self,
        service: &Service,
        commit: &CommitId,
        key: &ContentKey,
        now: SystemTime,
    ) -> Result<bool, StateError> {
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        let Some(content) = self.state.content(key)? else { return Ok(false) };
        if !self.blobs.contains(&content.blob, content.blob_size) {
            return Ok(false);
        }
        let statement = statement(service, commit);
        if !service.current().is_some_and(|current| is_current(&current, &statement, &content)) {
            self.metrics.builds.with_label_values(&["memo"]).inc();
            self.state_content(service, &statement, key, &content, now)?;
        }
        Ok(true)
    }

    /// A place to write the blob of a build.
    pub(crate) fn temporary(&self) -> io::Result<TemporaryBlob<'_>> {
        self.blobs.temporary()
    }

    /// Stores what was built and publishes it.
    pub(crate) fn settle_built(
        &self,
        service: &Service,
        commit: &CommitId,
        key: &ContentKey,
        content: &Content,
        blob: TemporaryBlob<'_>,
        now: SystemTime,
    ) -> Result<(), PublishError> {
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        blob.keep(&content.blob)?;
        self.state_content(service, &statement(service, commit), key, content, now)?;
        Ok(())
    }

    /// Stores the blob of a superseded version that was built again, and names it in the version's descriptor.
    pub(crate) fn restore_superseded(
        &self,
        superseded: &Descriptor,
        content: &Content,
        blob: TemporaryBlob<'_>,
    ) -> Result<(), PublishError> {
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        blob.keep(&content.blob)?;
        if superseded.representations().iter().all(|representation| representation.digest != content.blob) {
            self.state.revise_superseded(superseded, content)?;
        }
        Ok(())
    }

    /// Drops a superseded version whose blob can be had no more.
    pub(crate) fn forget_superseded(&self, superseded: &Descriptor) -> Result<(), StateError> {
        self.state.forget_superseded(&superseded.publication().service, &superseded.publication().digest)
    }

    /// The descriptor of a service's digest, if it is the current one or a retained one.
    pub(crate) fn version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Option<Descriptor>, StateError> {
        self.state.version(service, digest)
    }

    /// A descriptor that names this blob.
    pub(crate) fn reference(&self, blob: &BlobDigest) -> Result<Option<Reference>, StateError> {
        self.state.reference(blob)
    }

    /// Drops the versions that need not be kept and removes the blobs that nothing names.
    pub(crate) fn sweep(&self, now: SystemTime) -> Result<(), PublishError> {
        let _order = self.order.write().unwrap_or_else(PoisonError::into_inner);
        let named = self.state.expire(now)?;
        let swept = self.blobs.sweep(&named)?;
        self.metrics.store_bytes.set(i64::try_from(swept.bytes).unwrap_or(i64::MAX));
        self.metrics.store_blobs.set(i64::try_from(swept.blobs).unwrap_or(i64::MAX));
        self.metrics.swept_blobs.inc_by(swept.removed);
        if swept.removed > 0 {
            tracing::info!(removed = swept.removed, blobs = swept.blobs, bytes = swept.bytes, "blobs were swept");
        }
        Ok(())
    }

    fn state_content(
        &self,
        service: &Service,
        statement: &Statement,
        key: &ContentKey,
        content: &Content,
        now: SystemTime,
    ) -> Result<(), StateError> {
        match self.state.publish(statement, key, content, now, self.generation_floor)? {
            Change::None => {}
            Change::Revised(descriptor) => {
                self.metrics.revisions.inc();
                tracing::info!(service = %service.name, revision = descriptor.revision(), "revised");
                service.show(descriptor);
            }
            Change::Published(descriptor) => {
                self.metrics.publications.inc();
                let publication = descriptor.publication();
                tracing::info!(
                    service = %service.name,
                    generation = publication.generation,
                    commit = publication.commit.short(),
                    digest = %publication.digest,
                    size = publication.size,
                    omitted = publication.omitted.len(),
                    "published"
                );
                service.show(descriptor);
            }
        }
        Ok(())
    }
}

fn statement(service: &Service, commit: &CommitId) -> Statement {
    Statement { service: service.name.clone(), repository: service.repository.clone(), commit: commit.clone() }
}
