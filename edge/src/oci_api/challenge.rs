//! What a client without a valid credential is told: where it gets a token for its password, or that it may send the password.

use http::uri::Authority;
use http::{HeaderValue, Request, header};
use weir_protocol::name::ServiceName;
use weir_runtime::serve::RequestBody;

use super::error::OciError;
use super::repository;
use crate::access::Refusal;
use crate::api_error::ApiError;

/// The error with both challenges. Basic is the first, because clients of two libraries take the first one that they know: with
/// it they send the password at once, without a request to the token service, which newer ones do not trust at private addresses
/// or behind a proxy that changes `Host`. Clients that know only Bearer take the second.
pub(super) fn error(request: &Request<RequestBody>, service: Option<&ServiceName>, refusal: Refusal) -> OciError {
    let bearer = authority(request).map(|authority| bearer(&authority, service, refusal));
    let basic = HeaderValue::from_static("Basic realm=\"weir\"");
    let error = OciError::from(ApiError::Unauthorized(refusal));
    [basic].into_iter().chain(bearer).fold(error, |error, value| error.with_header(header::WWW_AUTHENTICATE, value))
}

/// As clients named this edge, which may have other names that they do not know.
fn authority(request: &Request<RequestBody>) -> Option<Authority> {
    let in_header = || Authority::try_from(request.headers().get(header::HOST)?.as_bytes()).ok();
    request.uri().authority().cloned().or_else(in_header).filter(|authority| !authority.as_str().contains('@'))
}

fn bearer(authority: &Authority, service: Option<&ServiceName>, refusal: Refusal) -> HeaderValue {
    let mut text = format!("Bearer realm=\"https://{authority}/v2/token\",service=\"weir\"");
    if let Some(service) = service {
        text += &format!(",scope=\"repository:{}:pull\"", repository(service));
    }
    if refusal != Refusal::NoCredential {
        text += &format!(",error=\"invalid_token\",error_description=\"{}\"", refusal.reason());
    }
    HeaderValue::try_from(text).expect("authorities, names and reasons are visible ASCII")
}
