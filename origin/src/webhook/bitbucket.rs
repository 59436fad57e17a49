//! Bitbucket Cloud and Data Center: `X-Hub-Signature` over the body, the event in `X-Event-Key`.

use http::HeaderMap;
use serde::Deserialize;

use super::signature::Proof;
use super::{Told, full_name};

pub(super) fn proof(headers: &HeaderMap) -> Proof {
    Proof::hex(headers, &["x-hub-signature"])
}

/// `repo:push` of the cloud.
#[derive(Deserialize)]
struct CloudPush {
    push: CloudChanges,
}

#[derive(Deserialize)]
struct CloudChanges {
    changes: Vec<CloudChange>,
}

/// What a ref was, and what it is; either may be nothing.
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

/// `repo:refs_changed` and `mirror:repo_synchronized` of the data center.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RefsChanged {
    changes: Vec<Change>,
    /// Then not all changes are told.
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

pub(super) fn told(event: &str, body: &[u8]) -> Told {
    let read = match event {
        "diagnostics:ping" => return Told::Ping,
        "repo:push" => serde_json::from_slice(body).map(|told: CloudPush| of_the_cloud(&told)),
        "repo:refs_changed" | "mirror:repo_synchronized" => serde_json::from_slice(body).map(of_the_data_center),
        // Their refs are in the data center alone; the cloud has none, and its events are called `pullrequest:…`.
        "pr:opened" | "pr:from_ref_updated" | "pr:to_ref_updated" | "pr:merged" => {
            serde_json::from_slice(body).map(|told: PullRequestEvent| {
                let id = told.pull_request.id;
                Told::Moved(["from", "merge"].map(|end| format!("refs/pull-requests/{id}/{end}")).into())
            })
        }
        "" => return Told::Unclear,
        _ => return Told::OtherEvent,
    };
    read.unwrap_or(Told::Unclear)
}

fn of_the_cloud(told: &CloudPush) -> Told {
    let refs = told.push.changes.iter().flat_map(|change| change.old.iter().chain(&change.new));
    let names: Option<Vec<String>> = refs.map(|each| full_name(&each.kind, &each.name)).collect();
    names.map_or(Told::Unclear, Told::Moved)
}

fn of_the_data_center(told: RefsChanged) -> Told {
    if told.ref_limit_exceeded || told.changes.iter().any(|change| !change.changed.id.starts_with("refs/")) {
        return Told::Unclear;
    }
    Told::Moved(told.changes.into_iter().map(|change| change.changed.id).collect())
}
