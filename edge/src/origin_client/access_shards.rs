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
        let response = self.get(route.label(), &route.to_string(), HeaderMap::new()).await?;
        match response.status() {
            http::StatusCode::OK => self.read(response, MAX_SHARD_BYTES).await,
            status => Err(self.bad_response(&format!("status {status} for a shard of the access list"))),
        }
    }
}
