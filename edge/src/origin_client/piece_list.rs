//! Asks for the piece list of a blob.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use weir_shared::digest::BlobDigest;
use weir_shared::piece::PieceList;
use weir_shared::route::Route;

use super::connection::Origin;
use super::{OriginError, OriginId, Origins};

/// The longest list that is read, in bytes: of a blob of half a tebibyte.
const MAX_LIST_BYTES: u64 = 16 << 20;

impl Origins {
    /// The bytes of a list that may be that of a blob of `size` bytes: from the origin of its service, when that is
    /// known, or from the first that has it.
    ///
    /// # Errors
    /// No origin has it, or gives it just now.
    pub(crate) async fn piece_list(
        &self,
        digest: &BlobDigest,
        size: u64,
        owner: Option<OriginId>,
    ) -> Result<Bytes, OriginError> {
        let mut failure = None;
        for id in self.order(owner) {
            match self.origins[id].piece_list(digest, size).await {
                Ok(bytes) => return Ok(bytes),
                // Its own origin's word is the last.
                Err(error) if owner == Some(id) && !matches!(error, OriginError::Misdirected(_)) => return Err(error),
                Err(OriginError::NotFound) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or(OriginError::NotFound))
    }
}

impl Origin {
    async fn piece_list(&self, digest: &BlobDigest, size: u64) -> Result<Bytes, OriginError> {
        let limit = usize::try_from(PieceList::length(size).min(MAX_LIST_BYTES)).expect("a list fits in memory");
        let route = Route::Pieces(*digest);
        let response = self.get(route.label(), &route.to_string(), HeaderMap::new()).await?;
        match response.status() {
            StatusCode::OK => self.read(response, limit).await,
            status => Err(self.bad_answer(&format!("status {status} in answer to a request for a piece list"))),
        }
    }
}
