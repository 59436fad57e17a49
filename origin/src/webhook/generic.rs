//! Any sender that signs the body: the hex of its HMAC-SHA256 in `X-Signature`, optionally after `sha256=`. A body
//! `{"ref": "refs/heads/main"}` names the changed ref; any other body only reports a change.

use http::HeaderMap;
use serde::Deserialize;

use super::signature::Proof;
use super::{Notification, moved};

pub(super) fn proof(headers: &HeaderMap) -> Proof {
    Proof::hex(headers, &["x-signature"])
}

#[derive(Deserialize)]
struct Payload {
    #[serde(rename = "ref")]
    name: String,
}

pub(super) fn parse(body: &[u8]) -> Notification {
    weir_protocol::json::from_slice(body).map_or(Notification::Unclear, |payload: Payload| moved(payload.name))
}
