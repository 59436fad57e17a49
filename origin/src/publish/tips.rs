//! Tips of followed refs in the history, and the order of publications that it says.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;

use super::draft::Draft;
use super::error::PublishError;
use super::history_line::{Line, Tip};
use super::positions::{Positions, ReadPositions};
use super::publisher::Publisher;
use weir_store::{Area, ObjectError};

/// The newest segments of a history that tell the order of publications: about 10,000 publications and tips.
const MAX_SEGMENTS: usize = 32;

const CONCURRENT_READS: usize = 8;

/// The most refs whose last tip the record has. Beyond it, a tip may be stored twice.
const MAX_REFS: usize = 1_000;

/// A tip at which not all services of its ref published something.
#[derive(Debug, Clone)]
pub(crate) struct SeenTip {
    pub(crate) followed_ref: String,
    pub(crate) revision_id: RevisionId,
    /// The services of the ref with what was published of them when it was seen.
    pub(crate) in_force: Vec<(ServiceName, Generation)>,
}

impl Publisher {
    /// Stores tips. One that is the last of its ref already is not stored again, and neither is one that a publication has
    /// overtaken: its line would say that this publication was in force at it.
    pub(crate) async fn add_tips(&self, repository: &RepositoryName, tips: Vec<SeenTip>) -> Result<(), PublishError> {
        let handle = self.handle(repository);
        let of_repository = handle.repository.clone();
        let add = move |draft: &mut Draft<'_>| {
            if draft.record.tips.len() >= MAX_REFS {
                draft.record.tips.clear();
            }
            for SeenTip { followed_ref, revision_id, in_force } in tips {
                let known = of_repository.known();
                let is_overtaken = in_force.iter().any(|(service, generation)| {
                    let written = || known.services.get(service).map(|known| known.generation);
                    let last = draft.rows.get(service).map(|row| row.generation).or_else(written);
                    last.is_some_and(|last| last > *generation)
                });
                if is_overtaken {
                    continue;
                }
                let last = draft.record.tips.insert(followed_ref.clone(), revision_id.clone());
                if last.as_ref() != Some(&revision_id) {
                    draft.lines.push(Line::Tip(Tip { tip: followed_ref, revision_id }));
                    draft.set_changed();
                }
            }
            Ok::<_, PublishError>(((), Vec::new()))
        };
        self.change(&handle, Vec::new(), add).await
    }

    /// The order of a repository's publications. Also of one that another origin owns, as it was last read.
    pub(crate) async fn positions(
        &self,
        repository: &RepositoryName,
        read_before: &ReadPositions,
    ) -> Result<Arc<Positions>, PublishError> {
        let Some(known) = self.repository(repository) else { return Ok(Arc::default()) };
        let segments = known.known().record.history.clone();
        let newest = segments.len().saturating_sub(MAX_SEGMENTS);
        let segments: Vec<ObjectDigest> = segments[newest..].iter().map(|segment| segment.digest).collect();
        if let Some(positions) = read_before.get(repository, &segments) {
            return Ok(positions);
        }
        let read = |digest: ObjectDigest| async move {
            match self.objects().get(repository, Area::Private, &digest).await {
                // What is lost is not known; the history logs it.
                Err(ObjectError::Missing(_) | ObjectError::Corrupt(_)) => Ok(None),
                read => read.map(Some),
            }
        };
        let read: Vec<_> = stream::iter(segments.clone()).map(read).buffered(CONCURRENT_READS).try_collect().await?;
        let order = move || {
            let mut positions = Positions::default();
            for segment in &read {
                match segment {
                    Some(segment) => positions.add(segment),
                    // Across a gap nothing can be compared.
                    None => positions = Positions::default(),
                }
            }
            Arc::new(positions)
        };
        let positions = tokio::task::spawn_blocking(order).await.map_err(|_| PublishError::ShuttingDown)?;
        read_before.set(repository, segments, positions.clone());
        Ok(positions)
    }
}
