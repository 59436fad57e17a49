//! GitHub: `X-Hub-Signature-256` over the body, the event in `X-GitHub-Event`.

use http::HeaderMap;
use serde::Deserialize;

use super::signature::Proof;
use super::{Told, full_name, moved};

pub(super) fn proof(headers: &HeaderMap) -> Proof {
    Proof::hex(headers, &["x-hub-signature-256"])
}

#[derive(Deserialize)]
struct Push {
    #[serde(rename = "ref")]
    name: String,
}

/// A branch or a tag that came or went. Each is told by a push as well.
#[derive(Deserialize)]
struct Made {
    #[serde(rename = "ref")]
    name: String,
    ref_type: String,
}

#[derive(Deserialize)]
struct PullRequest {
    number: u64,
}

pub(super) fn told(event: &str, body: &[u8]) -> Told {
    let read = match event {
        "ping" => return Told::Ping,
        "push" => serde_json::from_slice(body).map(|push: Push| moved(push.name)),
        "create" | "delete" => serde_json::from_slice(body).map(|made: Made| {
            full_name(&made.ref_type, &made.name).map_or(Told::Unclear, |name| Told::Moved(vec![name]))
        }),
        "pull_request" => serde_json::from_slice(body).map(|pull: PullRequest| {
            Told::Moved(["head", "merge"].map(|end| format!("refs/pull/{}/{end}", pull.number)).into())
        }),
        // Another default branch, among others.
        "" | "repository" => return Told::Unclear,
        _ => return Told::OtherEvent,
    };
    read.unwrap_or(Told::Unclear)
}
