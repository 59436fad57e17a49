//! Asks for an origin's last signed heartbeat with one service's place in it.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use weir_shared::name::ServiceName;
use weir_shared::route::Route;

use super::{OriginError, OriginId, Origins};

/// The longest answer that is read, in bytes: an envelope and a path of sixty-four hashes are less.
const MAX_STANDING_BYTES: usize = 64 << 10;

impl Origins {
    /// The bytes as the origin wrote them: what is signed is for whoever has its keys.
    ///
    /// # Errors
    /// [`OriginError::NotFound`] when it signs nothing, or has not yet signed anything with this service in it.
    pub(crate) async fn standing(&self, service: &ServiceName, owner: OriginId) -> Result<Bytes, OriginError> {
        let origin = &self.origins[owner];
        let route = Route::Standing(service.clone());
        let response = origin.get(route.label(), &route.to_string(), HeaderMap::new()).await?;
        match response.status() {
            StatusCode::OK => origin.read(response, MAX_STANDING_BYTES).await,
            status => Err(origin.bad_answer(&format!("status {status} in answer to a request for a heartbeat"))),
        }
    }
}
