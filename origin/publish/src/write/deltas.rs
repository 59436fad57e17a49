//! Deltas of the current version: what they are made against, and their publication as a revision of its descriptor.

use std::sync::Arc;

use bytes::Bytes;
use weir_protocol::descriptor::{Descriptor, FORMAT, Representation};
use weir_protocol::digest::{Sha256, TarballDigest};
use weir_protocol::encoding::Encoding;
use weir_source::Service;
use weir_store::Area;

use super::pending_change::PendingChange;
use super::repositories::Repositories;
use crate::decide::decision;
use crate::decide::draft::{Change, Draft, VisibleChange};
use crate::decide::staging::with_staged;
use crate::error::PublishError;
use crate::stored::row::{Row, parsed};

/// The versions before the current one that it has deltas against.
const BASES: usize = 3;

/// A version that lacks deltas.
#[derive(Debug)]
pub struct DeltaPlan {
    /// The current version.
    pub target: Descriptor,
    /// The versions before it that it has no delta against.
    pub bases: Vec<Descriptor>,
}

/// The deltas of current versions.
pub struct Deltas {
    pub(crate) repositories: Arc<Repositories>,
}

impl Deltas {
    /// Takes the next service with a new version, and how many wait after it.
    pub async fn next(&self) -> (Arc<Service>, usize) {
        self.repositories.shared.delta_queue.next().await
    }

    /// The deltas that the current version of a service lacks. `None`: none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn plan(&self, service: &Service) -> Result<Option<DeltaPlan>, PublishError> {
        let has_retained =
            self.repositories.known_service(&service.repository, &service.name, |known| !known.retained.is_empty());
        if has_retained != Some(true) {
            return Ok(None);
        }
        let Some(row) = self.repositories.row(&service.repository, &service.name).await? else { return Ok(None) };
        let Some(target) = row.current.as_ref().map(parsed).transpose()? else { return Ok(None) };
        let has_delta = |base: &Descriptor| {
            let dictionary = Some(base.publication().sha256);
            target.representations().iter().any(|one| one.dictionary == dictionary)
        };
        let bases: Vec<_> = bases(&row)?.into_iter().filter(|base| !has_delta(base)).collect();
        Ok((!bases.is_empty()).then_some(DeltaPlan { target, bases }))
    }

    /// Stores deltas, and adds them to the descriptor of a version. Returns false if the version is no longer current.
    ///
    /// # Errors
    /// The store cannot be written, or this origin does not own the repository.
    pub async fn publish(
        &self,
        service: &Arc<Service>,
        target: TarballDigest,
        deltas: Vec<(Sha256, Bytes)>,
    ) -> Result<bool, PublishError> {
        let (protection, time) = self.repositories.begin_attempt(&service.repository).finish().await?;
        let mut representations = Vec::new();
        for (dictionary, body) in deltas {
            let size = body.len() as u64;
            let digest =
                self.repositories.store(&service.repository, (Area::Public, "delta"), body, &protection).await?;
            let (encoding, dictionary) = (Encoding::Dcz, Some(dictionary));
            representations.push(Representation { encoding, dictionary, digest, size, frames: 1 });
        }
        let owned = service.clone();
        let (mut pending_change, answer) = PendingChange::new(vec![service.name.clone()], move |draft| {
            add_deltas(draft, &owned, &target, representations)
        });
        pending_change.attempt = Some((protection, time));
        self.repositories.handle(&service.repository).send(pending_change, answer).await
    }
}

/// Adds deltas to the current version if it is still this one.
fn add_deltas(
    draft: &mut Draft<'_>,
    service: &Arc<Service>,
    target: &TarballDigest,
    deltas: Vec<Representation>,
) -> Result<(bool, Vec<VisibleChange>), PublishError> {
    let mut row = draft.row(&service.name)?;
    let bases: Vec<_> = bases(&row)?.iter().map(|base| base.publication().sha256).collect();
    let current = row.current.as_ref().filter(|current| current.digest == *target && !service.is_withdrawn());
    let Some(current) = current else { return Ok((false, Vec::new())) };
    let Some(fields) = decision::with_deltas(&parsed(current)?, deltas, &bases) else {
        return Ok((true, Vec::new()));
    };
    let descriptor = draft.sign(with_staged(&row, fields))?;
    row.current = row.current.as_ref().map(|current| current.with(&descriptor));
    draft.put(row);
    Ok((true, vec![VisibleChange { service: service.clone(), change: Change::Revised(descriptor) }]))
}

/// The versions that deltas are made against, the latest first: those that everybody had.
fn bases(row: &Row) -> Result<Vec<Descriptor>, PublishError> {
    let versions = row
        .retained
        .iter()
        .filter(|retained| !retained.only_staged)
        .take(BASES)
        .map(|retained| parsed(&retained.version));
    let versions = versions.collect::<Result<Vec<_>, _>>()?;
    Ok(versions.into_iter().filter(|version| version.publication().format == FORMAT).collect())
}
