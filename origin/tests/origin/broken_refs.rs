//! A ref that nobody can follow, which whoever may push a tag can make: what else moves is published all the same.

use crate::prelude::*;

/// Pushes a tag on a tag, and so on, that many.
fn push_nested_tags(upstream: &Upstream, count: usize) {
    let work = Git::at(upstream.work());
    let (mut of, mut kind) = (upstream.git(&["rev-parse", "HEAD"]), "commit");
    for _ in 0..count {
        let text = format!("object {of}\ntype {kind}\ntag deep\ntagger a <a@b> 0 +0000\n\nt\n");
        of = String::from_utf8(work.feed(["mktag"], text.as_bytes())).unwrap().trim().to_owned();
        kind = "tag";
    }
    upstream.git(&["push", "--quiet", "origin", &format!("{of}:refs/tags/deep")]);
}

async fn is_at(node: &Node, commit: &str) {
    assert_eq!(node.descriptor().await.publication().commit.as_str(), commit);
    assert_eq!(*node.running.condition(&service()).unwrap().borrow(), Condition::Following);
}

#[track_caller]
fn shows_the_tag(state: &RepositoryState) {
    let Health::Unhealthy { failure, .. } = &state.health else { panic!("{:?}", state.health) };
    assert!(failure.step == "fetch" && failure.reason.contains("`refs/tags/deep` cannot be followed"), "{failure:?}");
    assert!(state.mirrored && state.consecutive_failures == 0, "{state:?}");
}

#[tokio::test]
async fn what_moves_beside_a_tag_that_cannot_be_followed_is_published() {
    let (_home, upstream, node, _) = started().await;
    push_nested_tags(&upstream, 40);
    let second = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    shows_the_tag(&node.poll().await);
    is_at(&node, &second).await;

    // Nothing is to be done, and the tag is there still.
    shows_the_tag(&node.poll().await);
    is_at(&node, &second).await;
    let third = upstream.push("deploy/app.yaml", b"replicas: 3\n");
    shows_the_tag(&node.poll().await);
    is_at(&node, &third).await;
    assert!(node.admin("/status").await.1.contains("cannot be followed"));

    upstream.git(&["push", "--quiet", "origin", ":refs/tags/deep"]);
    let state = node.poll().await;
    assert!(matches!(state.health, Health::Healthy { .. }), "{state:?}");
    is_at(&node, &third).await;
    assert_eq!(node.metric("weir_origin_repository_healthy{repository=\"shop\"}").await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn a_repository_is_cloned_though_it_has_a_tag_that_cannot_be_followed() {
    let (home, upstream) = (Home::new(), Upstream::small());
    push_nested_tags(&upstream, 40);
    let (node, _) = home.start_published(&upstream).await;
    shows_the_tag(&node.repository(|state| state.applied_polls > 0).await);
    is_at(&node, &upstream.git(&["rev-parse", "HEAD"])).await;
    node.stop().await;
}
