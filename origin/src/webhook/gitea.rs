//! Gitea and Forgejo: the hex of the HMAC in `X-Gitea-Signature` or `X-Forgejo-Signature`, the event beside it. The
//! payloads are GitHub's.

use http::HeaderMap;

use super::signature::Proof;
use super::{Notification, github};

pub(super) fn proof(headers: &HeaderMap) -> Proof {
    Proof::hex(headers, &["x-forgejo-signature", "x-gitea-signature", "x-gogs-signature"])
}

pub(super) fn parse(event: &str, body: &[u8]) -> Notification {
    match event {
        // A push to the source branch of a pull request has an event of its own here.
        "pull_request_sync" => github::parse("pull_request", body),
        event => github::parse(event, body),
    }
}
