//! Builds the tarball of a service. All of this blocks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::runtime::Handle;
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_source::{RetryPolicy, Service, ServiceFailure, Source};
use weir_store::Area;
use weir_tarball::{Base, BuildContext, Built, Limits, Recipe};
use weir_upstream::{DataDir, free_disk};

use super::part_sources::PartSources;
use crate::config::LimitsConfig;
use crate::metrics::Metrics;
use crate::publish::{Attempt, PublishError, Publisher};

/// The limits of builds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BuildOptions {
    pub(crate) limits: Limits,
    pub(crate) threads: usize,
    /// Free bytes on the disk below which no build starts.
    pub(crate) min_free_bytes: u64,
}

impl BuildOptions {
    pub(super) fn new(limits: &LimitsConfig) -> Self {
        Self { limits: limits.tarball(), threads: limits.build_threads, min_free_bytes: limits.min_free.as_u64() }
    }
}

impl From<PublishError> for ServiceFailure {
    fn from(error: PublishError) -> Self {
        let retry = match error {
            PublishError::DescriptorTooLarge(_) | PublishError::Manifest(_) => RetryPolicy::Never,
            PublishError::AttemptExpired(_) => RetryPolicy::BackOff,
            _ => RetryPolicy::NextPoll,
        };
        Self { retry, ..Self::transient("store", error.to_string()) }
    }
}

/// The dependencies of a build.
pub(super) struct Builder {
    pub(super) source: Arc<Source>,
    pub(super) part_sources: Arc<PartSources>,
    pub(super) publisher: Arc<Publisher>,
    pub(super) options: BuildOptions,
    pub(super) data_dir: DataDir,
    pub(super) metrics: Metrics,
}

impl Builder {
    /// Builds the tarball of a service at a revision, and writes its frames through a publish attempt. `recipe`: that of a version
    /// whose frames are reused.
    pub(super) fn build(
        &self,
        service: &Service,
        (revision, parts): (&RevisionId, &[Part]),
        recipe: Option<Recipe>,
        attempt: &Attempt,
        runtime: &Handle,
        interrupt: &AtomicBool,
    ) -> Result<Built, ServiceFailure> {
        let BuildOptions { limits, threads, min_free_bytes } = self.options;
        free_disk::require_room(&self.data_dir, min_free_bytes)
            .map_err(|reason| ServiceFailure::transient("store", reason))?;
        let base = recipe.map(|recipe| self.base(service, recipe, runtime));
        let context = BuildContext { limits: &limits, threads, base: base.as_ref(), interrupt };
        let built = if service.parts.is_empty() {
            self.source.build(service, revision, &context, attempt)?
        } else {
            self.part_sources.build(service, parts, &context, attempt)?
        };
        let reused = built.reused_frames;
        self.metrics.frames.with_label_values(&["reused"]).inc_by(reused as u64);
        self.metrics.frames.with_label_values(&["built"]).inc_by(built.zstd.len().saturating_sub(reused) as u64);
        Ok(built)
    }

    fn base(&self, service: &Service, recipe: Recipe, runtime: &Handle) -> Base {
        let (objects, repository, runtime) =
            (self.publisher.repositories.objects().clone(), service.repository.clone(), runtime.clone());
        Base::new(recipe, move |digest| {
            runtime.block_on(objects.get(&repository, Area::Public, digest)).map_err(io::Error::other)
        })
    }
}
