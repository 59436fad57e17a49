//! Builds the tarball of a service. All of this blocks.

use std::io;
use std::sync::atomic::AtomicBool;

use tokio::runtime::Handle;
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_publish::Attempt;
use weir_source::{Service, ServiceFailure};
use weir_store::Area;
use weir_tarball::{Base, BuildContext, Built, Recipe};
use weir_upstream::free_disk;

use super::context::Context;
use super::repository::Repository;

/// Builds the tarball of a service at a revision, and writes its frames through a publish attempt. `recipe`: that of a version
/// whose frames are reused.
pub(super) fn build(
    repository: &Repository,
    service: &Service,
    (revision, parts): (&RevisionId, &[Part]),
    recipe: Option<Recipe>,
    attempt: &Attempt,
    runtime: &Handle,
    interrupt: &AtomicBool,
) -> Result<Built, ServiceFailure> {
    let Context { publisher, data_dir, metrics, build_threads, sources, part_sources, .. } = &repository.context;
    free_disk::require_room(data_dir, sources.min_free).map_err(|reason| ServiceFailure::transient("store", reason))?;
    let base = recipe.map(|recipe| {
        let (objects, repository, runtime) =
            (publisher.repositories.objects().clone(), service.repository.clone(), runtime.clone());
        Base::new(recipe, move |digest| {
            runtime.block_on(objects.get(&repository, Area::Public, digest)).map_err(io::Error::other)
        })
    });
    let context = BuildContext { limits: &sources.limits, threads: *build_threads, base: base.as_ref(), interrupt };
    let built = if service.parts.is_empty() {
        repository.source.build(service, revision, &context, attempt)?
    } else {
        part_sources.build(service, parts, &context, attempt)?
    };
    let reused = built.reused_frames;
    metrics.frames.with_label_values(&["reused"]).inc_by(reused as u64);
    metrics.frames.with_label_values(&["built"]).inc_by(built.zstd.len().saturating_sub(reused) as u64);
    Ok(built)
}
