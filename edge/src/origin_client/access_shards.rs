//! Shards of the access list of an origin.

use bytes::Bytes;
use http::HeaderMap;
use weir_cache::OriginError;
use weir_protocol::access_list::MAX_SHARD_BYTES;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::route::Route;

use super::Origin;

impl Origin {
    /// Requests the documents of a shard of its access list.
    ///
    /// # Errors
    /// [`OriginError::NotFound`] when its list does not have the shard any longer, or another error of the request.
    pub(crate) async fn access_shard(&self, digest: &ObjectDigest) -> Result<Bytes, OriginError> {
        let route = Route::AccessShard(*digest);
        // As slow as objects may be: after an edit all edges ask for the same.
        let response = self.object(&route, HeaderMap::new(), false, true).await?;
        self.read(response, MAX_SHARD_BYTES).await
    }
}
