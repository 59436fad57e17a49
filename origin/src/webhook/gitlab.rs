//! GitLab: a signature in `webhook-signature`, or the secret itself in `X-Gitlab-Token`. The event is in the body.

use http::HeaderMap;
use serde::Deserialize;

use super::signature::Proof;
use super::{Notification, moved};

/// The signature covers id, time and body, joined by full stops. If a delivery has a signature, its token does not
/// count.
pub(super) fn proof(headers: &HeaderMap) -> Proof {
    let value = |name: &str| headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    match headers.get("webhook-signature") {
        Some(signatures) => {
            let before = [value("webhook-id"), b".", value("webhook-timestamp"), b"."].concat();
            Proof::listed(before, signatures.as_bytes())
        }
        None => Proof::Token(value("x-gitlab-token").to_owned()),
    }
}

#[derive(Deserialize)]
struct Event {
    /// Set by project and group hooks.
    object_kind: Option<String>,
    /// Set by system hooks, and by some others as well.
    event_name: Option<String>,
    #[serde(rename = "ref")]
    name: Option<String>,
    /// Set by `repository_update` of a system hook.
    refs: Option<Vec<String>>,
    object_attributes: Option<Attributes>,
}

#[derive(Deserialize)]
struct Attributes {
    iid: Option<u64>,
}

pub(super) fn parse(body: &[u8]) -> Notification {
    let Ok(event) = weir_protocol::json::from_slice::<Event>(body) else { return Notification::Unclear };
    match event.object_kind.as_deref().or(event.event_name.as_deref()) {
        Some("push" | "tag_push") => event.name.map_or(Notification::Unclear, moved),
        Some("repository_update") => match event.refs {
            Some(refs) if refs.iter().all(|name| name.starts_with("refs/")) => Notification::RefsMoved(refs),
            _ => Notification::Unclear,
        },
        Some("merge_request") => match event.object_attributes.and_then(|attributes| attributes.iid) {
            Some(iid) => {
                Notification::RefsMoved(["head", "merge"].map(|end| format!("refs/merge-requests/{iid}/{end}")).into())
            }
            None => Notification::Unclear,
        },
        Some(_) => Notification::OtherEvent,
        None => Notification::Unclear,
    }
}
