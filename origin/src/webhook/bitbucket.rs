//! Bitbucket Cloud and Data Center: `X-Hub-Signature` over the body, the event in `X-Event-Key`.

use http::HeaderMap;
use serde::Deserialize;

use super::signature::Proof;
use super::{Notification, full_name};

pub(super) fn proof(headers: &HeaderMap) -> Proof {
    Proof::hex(headers, &["x-hub-signature"])
}

/// `repo:push` of Bitbucket Cloud.
#[derive(Deserialize)]
struct CloudPush {
    push: CloudChanges,
}

#[derive(Deserialize)]
struct CloudChanges {
    changes: Vec<CloudChange>,
}

/// The old and the new state of a ref; `None` if it was created or deleted.
#[derive(Deserialize)]
struct CloudChange {
    old: Option<CloudRef>,
    new: Option<CloudRef>,
}

#[derive(Deserialize)]
struct CloudRef {
    #[serde(rename = "type")]
    kind: String,
    name: String,
}

/// `repo:refs_changed` and `mirror:repo_synchronized` of Data Center.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RefsChanged {
    changes: Vec<Change>,
    /// The delivery does not list all changes.
    #[serde(default)]
    ref_limit_exceeded: bool,
}

#[derive(Deserialize)]
struct Change {
    #[serde(rename = "ref")]
    changed: ChangedRef,
}

#[derive(Deserialize)]
struct ChangedRef {
    id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PullRequestEvent {
    pull_request: PullRequest,
}

#[derive(Deserialize)]
struct PullRequest {
    id: u64,
}

pub(super) fn parse(event: &str, body: &[u8]) -> Notification {
    let read = match event {
        "diagnostics:ping" => return Notification::Ping,
        "repo:push" => weir_protocol::json::from_slice(body).map(|payload: CloudPush| of_the_cloud(&payload)),
        "repo:refs_changed" | "mirror:repo_synchronized" => {
            weir_protocol::json::from_slice(body).map(of_the_data_center)
        }
        // Only Data Center has refs for pull requests; events of the cloud are called `pullrequest:…`.
        "pr:opened" | "pr:from_ref_updated" | "pr:to_ref_updated" | "pr:merged" => {
            weir_protocol::json::from_slice(body).map(|payload: PullRequestEvent| {
                let id = payload.pull_request.id;
                Notification::RefsMoved(["from", "merge"].map(|end| format!("refs/pull-requests/{id}/{end}")).into())
            })
        }
        "" => return Notification::Unclear,
        _ => return Notification::OtherEvent,
    };
    read.unwrap_or(Notification::Unclear)
}

fn of_the_cloud(payload: &CloudPush) -> Notification {
    let refs = payload.push.changes.iter().flat_map(|change| change.old.iter().chain(&change.new));
    let names: Option<Vec<String>> = refs.map(|each| full_name(&each.kind, &each.name)).collect();
    names.map_or(Notification::Unclear, Notification::RefsMoved)
}

fn of_the_data_center(payload: RefsChanged) -> Notification {
    if payload.ref_limit_exceeded || payload.changes.iter().any(|change| !change.changed.id.starts_with("refs/")) {
        return Notification::Unclear;
    }
    Notification::RefsMoved(payload.changes.into_iter().map(|change| change.changed.id).collect())
}
