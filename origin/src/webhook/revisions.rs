//! The revisions to which an authentic delivery says that refs have moved, by the fields of all providers.

use serde::Deserialize;
use weir_protocol::commit_id::CommitId;
use weir_protocol::revision_id::RevisionId;

/// The most revisions of one delivery.
const MAX_REVISIONS: usize = 16;

#[derive(Deserialize)]
struct Delivered {
    /// GitHub, Gitea and GitLab. For an annotated tag it is the tag; the next two are its commit.
    after: Option<String>,
    head_commit: Option<HeadCommit>,
    checkout_sha: Option<String>,
    /// System hooks of GitLab, and Bitbucket Data Center.
    changes: Option<Vec<Change>>,
    /// Bitbucket Cloud.
    push: Option<CloudPush>,
    /// Any other sender.
    revision: Option<String>,
}

#[derive(Deserialize)]
struct HeadCommit {
    id: String,
}

#[derive(Deserialize)]
struct Change {
    #[serde(alias = "toHash")]
    after: Option<String>,
}

#[derive(Deserialize)]
struct CloudPush {
    changes: Vec<CloudChange>,
}

#[derive(Deserialize)]
struct CloudChange {
    new: Option<CloudRef>,
}

#[derive(Deserialize)]
struct CloudRef {
    target: Option<CloudTarget>,
}

#[derive(Deserialize)]
struct CloudTarget {
    hash: String,
}

/// Empty if the body names none, or cannot be read.
pub(super) fn parse(body: &[u8]) -> Vec<RevisionId> {
    let Ok(delivered) = weir_protocol::json::from_slice::<Delivered>(body) else { return Vec::new() };
    let Delivered { after, head_commit, checkout_sha, changes, push, revision } = delivered;
    let changes = changes.into_iter().flatten().filter_map(|change| change.after);
    let pushed = push.into_iter().flat_map(|push| push.changes);
    let pushed = pushed.filter_map(|change| Some(change.new?.target?.hash));
    let head = head_commit.map(|commit| commit.id);
    let all = [after, head, checkout_sha, revision].into_iter().flatten().chain(changes).chain(pushed);
    let id = |text: String| match text.parse::<CommitId>() {
        Ok(commit) => Some(RevisionId::from(&commit)),
        Err(_) => text.parse().ok(),
    };
    all.filter_map(id).take(MAX_REVISIONS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_new_revisions_are_read_and_the_old_ones_are_not() {
        let (new, old) = ("a".repeat(40), "b".repeat(40));
        let oci = format!("oci:sha256:{}", "c".repeat(64));
        for (body, expected) in [
            (format!(r#"{{"ref": "refs/heads/main", "before": "{old}", "after": "{new}"}}"#), format!("sha1:{new}")),
            (format!(r#"{{"after": "{old}x", "head_commit": {{"id": "{new}"}}}}"#), format!("sha1:{new}")),
            (format!(r#"{{"before": "{old}", "checkout_sha": "{new}", "after": null}}"#), format!("sha1:{new}")),
            (format!(r#"{{"changes": [{{"fromHash": "{old}", "toHash": "{new}"}}]}}"#), format!("sha1:{new}")),
            (format!(r#"{{"changes": [{{"before": "{old}", "after": "{new}"}}]}}"#), format!("sha1:{new}")),
            (
                format!(r#"{{"push": {{"changes": [{{"old": null, "new": {{"target": {{"hash": "{new}"}}}}}}]}}}}"#),
                format!("sha1:{new}"),
            ),
            (json!({ "revision": oci }).to_string(), oci),
        ] {
            let revisions: Vec<String> = parse(body.as_bytes()).iter().map(ToString::to_string).collect();
            assert_eq!(revisions, [expected], "{body}");
        }
        assert!(parse(b"[]").is_empty() && parse(br#"{"changes": {"title": {}}}"#).is_empty());
    }
}
