//! A version for some agents first: staged, promoted and aborted by operators.

use weir_protocol::descriptor::Generation;

use crate::observed::{ask, message, report};
use crate::operator::Reply;
use crate::prelude::*;

pub(crate) const ROLLOUT: &str = "/v1/services/shop-prod/rollout";

async fn stage(operator: &Operator, revision: &str) -> Reply {
    let body = json!({ "revision": revision, "for": [{ "labels": { "ring": "canary" } }], "reason": "CHG-7" });
    operator.send(Method::POST, "/v1/services/shop-prod/stage", &[], Some(body)).await
}

pub(crate) async fn end(operator: &Operator, action: &str) -> Reply {
    operator.send(Method::POST, ROLLOUT, &[], Some(json!({ "action": action, "reason": "it is slow" }))).await
}

fn refused(reply: &Reply, kind: &str, words: &str) {
    let (problem, detail) = reply.problem();
    assert!((reply.status.as_u16(), problem) == (409, kind) && detail.contains(words), "{reply:?}");
}

/// Pushes a commit to another branch than the service follows.
fn push_elsewhere(upstream: &Upstream, contents: &[u8]) -> String {
    upstream.git(&["checkout", "-q", "-B", "next", "main"]);
    let commit = upstream.push("deploy/app.yaml", contents);
    upstream.git(&["checkout", "-q", "main"]);
    commit
}

/// The version that the one in force has inside.
pub(crate) fn staged(descriptor: &Descriptor) -> Option<Descriptor> {
    let staged = descriptor.fields().staged.as_ref()?;
    Some(Descriptor::parse(Bytes::copy_from_slice(staged.descriptor.get().as_bytes())).unwrap())
}

/// What `edge-1` says: the only canary cannot take this generation.
fn failing(generation: Generation, digest: &TarballDigest) -> Value {
    let mut said = message(1);
    let row = json!({
        "service": "shop-prod", "desired": { "digest": digest, "generation": generation }, "current": null,
        "phase": "waiting", "hook": "none",
        "problem": { "kind": "check-vetoed", "since": "2026-11-20T09:30:00Z", "tries": 1, "text": "no CRD" },
    });
    for agent in said["agents"].as_array_mut().unwrap() {
        agent["rows"] = json!([row]);
    }
    said["unheard"] = json!([]);
    said
}

#[tokio::test]
async fn a_commit_of_another_branch_is_staged_and_then_aborted_or_published_for_all() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let next = push_elsewhere(&upstream, b"replicas: 7\n");
    let node = home.start(config(&home, &upstream)).await;
    let old = node.published(|_| true).await;
    let (operator, edge) = (Operator::without_token(&home, &node, Some("operator")), Operator::as_edge(&home, &node));
    ask(&operator, "/v1/edges").await;
    assert_eq!(operator.get(ROLLOUT).await.body, json!({ "service": "shop-prod", "to": null, "state": "none" }));
    refused(&end(&operator, "promote").await, "nothing-staged", "");
    refused(&end(&operator, "abort").await, "nothing-staged", "");
    refused(&stage(&operator, "none-such").await, "not-stageable", "step resolve");
    refused(&stage(&operator, "current").await, "not-stageable", "for everybody");

    let begun = stage(&operator, &next).await;
    assert_eq!((begun.status.as_u16(), &begun.body["state"]), (200, &json!("running")), "{begun:?}");
    assert_eq!([&begun.body["to"]["commit"], &begun.body["by"]], [&json!(next), &json!("operator-1")]);
    assert_eq!(begun.body["from"]["generation"], json!(old.publication().generation));
    let in_force = node.descriptor().await;
    let later = staged(&in_force).unwrap();
    assert_eq!((in_force.publication(), commit_of(&later)), (old.publication(), &*next));
    assert_eq!(begun.body["to"]["generation"], json!(later.publication().generation));
    node.tarball(&later).await;

    let said = failing(later.publication().generation, &later.publication().digest);
    assert_eq!(report(&edge, said).await.status, 204);
    let rollout = operator.get(ROLLOUT).await.body;
    assert_eq!(rollout["stages"], json!([{ "expected": 1, "done": 0, "failed": 1, "silent": 0 }]), "{rollout:?}");
    assert_eq!(rollout["agents"], json!([{ "agent": "cluster-1", "problem": "check-vetoed", "text": "no CRD" }]));

    // Later tips wait for it.
    let pushed = upstream.push("deploy/app.yaml", b"replicas: 9\n");
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), in_force.bytes());
    let ended = end(&operator, "abort").await;
    assert_eq!([&ended.body["state"], &ended.body["to"]["commit"]], [&json!("aborted"), &json!(next)], "{ended:?}");
    let on = node.published(|now| commit_of(now) == pushed).await;
    assert!(on.publication().generation > later.publication().generation && staged(&on).is_none());
    let history = operator.get("/v1/services/shop-prod/history").await.body;
    let acts = |at: usize| history["publications"][at]["acts"].clone();
    assert_eq!([&acts(1)[0]["event"], &acts(1)[0]["reason"]], [&json!("aborted"), &json!("it is slow")], "{history:?}");
    assert_eq!([&acts(2)[0]["event"], &acts(2)[0]["reason"]], [&json!("staged"), &json!("CHG-7")]);

    // By the name of its branch. It is not the tip of what the service follows.
    assert_eq!(stage(&operator, "next").await.status, 200);
    let later = staged(&node.descriptor().await).unwrap();
    let promoted = end(&operator, "promote").await;
    assert_eq!((promoted.status.as_u16(), &promoted.body["state"]), (200, &json!("none")), "{promoted:?}");
    assert_eq!(node.descriptor().await.bytes(), later.bytes());
    assert_eq!(node.status().await["services"][0]["condition"], "pinned");
    refused(&stage(&operator, &pushed).await, "not-stageable", "is pinned");
    node.stop().await;
}

#[tokio::test]
async fn nothing_is_staged_while_an_edge_does_not_know_it() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let next = push_elsewhere(&upstream, b"replicas: 7\n");
    let node = home.start(config(&home, &upstream)).await;
    node.published(|_| true).await;
    let (operator, edge) = (Operator::without_token(&home, &node, Some("operator")), Operator::as_edge(&home, &node));
    ask(&operator, "/v1/edges").await;
    let mut former = message(1);
    former.as_object_mut().unwrap().remove("capabilities");
    assert_eq!(report(&edge, former).await.status, 204);
    refused(&stage(&operator, &next).await, "not-stageable", "`edge-1`");
    assert_eq!(report(&edge, message(2)).await.status, 204);
    assert_eq!(stage(&operator, &next).await.status, 200);
    // What a merge brings to the ref of the service is staged already.
    upstream.git(&["merge", "-q", "--no-ff", "--no-edit", "next"]);
    upstream.push_head();
    node.poll().await;
    let promoted = end(&operator, "promote").await;
    assert_eq!(promoted.status, 200, "{promoted:?}");
    assert_eq!(commit_of(&node.descriptor().await), next);
    assert_eq!(node.status().await["services"][0]["condition"], "following", "it is the tip");
    node.stop().await;
}
