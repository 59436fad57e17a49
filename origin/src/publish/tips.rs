//! Tips of followed refs in the history, and the order of publications that it says.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::event::RevisionSeen;
use weir_protocol::name::RepositoryName;

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

impl Publisher {
    /// Stores tips at which not all services of their refs published something. A tip that is the last one of its ref already
    /// is not stored again.
    pub(crate) async fn add_tips(
        &self,
        repository: &RepositoryName,
        tips: Vec<RevisionSeen>,
    ) -> Result<(), PublishError> {
        let add = move |draft: &mut Draft<'_>| {
            if draft.record.tips.len() >= MAX_REFS {
                draft.record.tips.clear();
            }
            for RevisionSeen { followed_ref, revision_id, .. } in tips {
                let last = draft.record.tips.insert(followed_ref.clone(), revision_id.clone());
                if last.as_ref() != Some(&revision_id) {
                    draft.lines.push(Line::Tip(Tip { tip: followed_ref, revision_id }));
                    draft.set_changed();
                }
            }
            Ok::<_, PublishError>(((), Vec::new()))
        };
        self.change(&self.handle(repository), Vec::new(), add).await
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
