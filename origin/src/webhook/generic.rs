//! Any sender that signs the body: the hex of its HMAC-SHA256 in `X-Signature`, optionally after `sha256=`. One that cannot sign
//! sends the secret itself. A body `{"ref": "refs/heads/main"}` names the changed ref; any other body only reports a change.

use http::{HeaderMap, HeaderName};
use serde::Deserialize;

use super::signature::Proof;
use super::{Notification, moved};

/// Has the secret of a sender that cannot sign.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-webhook-token");

/// If a delivery has a signature, its token does not count.
pub(super) fn proof(headers: &HeaderMap) -> Proof {
    match headers.get(TOKEN) {
        Some(token) if !headers.contains_key("x-signature") => Proof::Token(token.as_bytes().to_owned()),
        _ => Proof::hex(headers, &["x-signature"]),
    }
}

#[derive(Deserialize)]
struct Payload {
    #[serde(rename = "ref")]
    name: String,
}

pub(super) fn parse(body: &[u8]) -> Notification {
    weir_protocol::json::from_slice(body).map_or(Notification::Unclear, |payload: Payload| moved(payload.name))
}
