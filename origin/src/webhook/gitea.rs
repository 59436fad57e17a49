//! Gitea and Forgejo: the hex of the HMAC in `X-Gitea-Signature` or `X-Forgejo-Signature`, and the event in a header.
//! The payloads are GitHub's.

use http::HeaderMap;

use super::signature::Proof;
use super::{Notification, github};

pub(super) fn proof(headers: &HeaderMap) -> Proof {
    Proof::hex(headers, &["x-forgejo-signature", "x-gitea-signature", "x-gogs-signature"])
}

pub(super) fn parse(event: &str, body: &[u8]) -> Notification {
    match event {
        // Gitea has a separate event for a push to the source branch of a pull request.
        "pull_request_sync" => github::parse("pull_request", body),
        event => github::parse(event, body),
    }
}
