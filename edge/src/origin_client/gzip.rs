//! Has the gzip representation of a version made at its origin.

use std::time::Duration;

use http::StatusCode;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::TarballDigest;
use weir_shared::name::ServiceName;
use weir_shared::route::Route;

use super::{OriginError, OriginId, Origins};

/// How long an origin may take: it answers `503` after 60 s, while it goes on making what was asked for.
const GZIP_TIMEOUT: Duration = Duration::from_secs(65);

impl Origins {
    /// The descriptor of a version, once its gzip representation is there.
    ///
    /// # Errors
    /// [`OriginError::NotFound`] when the origin has no such version (any more), or is of a release that makes no gzip;
    /// why it cannot be had otherwise.
    pub(crate) async fn gzip(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        owner: OriginId,
    ) -> Result<Descriptor, OriginError> {
        let origin = &self.origins[owner];
        let path = Route::Gzip(service.clone(), *digest).to_string();
        let response = origin.post("gzip", &path, GZIP_TIMEOUT).await?;
        match response.status() {
            StatusCode::OK => {
                let descriptor = self.read(owner, service, origin.read_descriptor(response).await?)?;
                if descriptor.publication().digest != *digest {
                    return Err(origin.bad_answer("it answered with another version than the one asked for"));
                }
                Ok(descriptor)
            }
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Err(OriginError::NotFound),
            StatusCode::MISDIRECTED_REQUEST => Err(OriginError::Misdirected(origin.name().to_owned())),
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                Err(origin.refused(response).await)
            }
            status => Err(origin.bad_answer(&format!("status {status} in answer to a request for gzip"))),
        }
    }
}
