//! Broken refs, which anyone with permission to push can create: other refs are followed nevertheless.

use crate::prelude::*;

/// Pushes a chain of tags.
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
    assert_eq!(commit_of(&node.descriptor().await), commit);
    assert_eq!(*node.running.condition(&service()).unwrap().borrow(), Condition::Following);
}

#[track_caller]
fn shows_the_tag(state: &RepositoryState) {
    assert!(matches!(state.health, Health::Healthy { .. }), "{state:?}");
    let [tag] = &*state.left_out else { panic!("{state:?}") };
    assert!(
        !tag.is_followed && tag.name == "refs/tags/deep" && tag.failure.reason.contains("too many tags"),
        "{tag:?}"
    );
    assert!(state.mirrored && state.consecutive_failures == 0, "{state:?}");
}

#[tokio::test]
async fn refs_besides_a_broken_tag_are_published() {
    let (_home, upstream, node, _) = started().await;
    push_nested_tags(&upstream, 40);
    let second = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    shows_the_tag(&node.poll().await);
    is_at(&node, &second).await;

    // The broken tag causes no work, and is still reported.
    shows_the_tag(&node.poll().await);
    is_at(&node, &second).await;
    let third = upstream.push("deploy/app.yaml", b"replicas: 3\n");
    shows_the_tag(&node.poll().await);
    is_at(&node, &third).await;
    assert!(node.admin("/status").await.1.contains("cannot be followed"));
    assert_eq!(node.metric("weir_origin_refs_left_out{repository=\"shop\"}").await, 1.0);

    upstream.git(&["push", "--quiet", "origin", ":refs/tags/deep"]);
    let state = node.poll().await;
    assert!(state.left_out.is_empty(), "{state:?}");
    is_at(&node, &third).await;
    assert_eq!(node.metric("weir_origin_refs_left_out{repository=\"shop\"}").await, 0.0);
    assert_eq!(node.metric("weir_origin_repository_healthy{repository=\"shop\"}").await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn a_repository_with_a_broken_tag_is_cloned() {
    let (home, upstream) = (Home::new(), Upstream::small());
    push_nested_tags(&upstream, 40);
    let (node, _) = home.start_published(&upstream).await;
    shows_the_tag(&node.repository(|state| state.applied_polls > 0).await);
    is_at(&node, &upstream.git(&["rev-parse", "HEAD"])).await;
    node.stop().await;
}

/// A service that follows a broken ref is told why; the others go on.
#[tokio::test]
async fn a_followed_tag_that_is_broken_is_named_in_its_service() {
    let (home, upstream) = (Home::new(), Upstream::small());
    push_nested_tags(&upstream, 40);
    let mut config = home.config(&upstream.url());
    also(&mut config, "docs").followed_ref = "refs/tags/deep".parse().unwrap();
    let node = home.start(config).await;
    let state = node.repository(|state| state.applied_polls > 0).await;
    let Health::Unhealthy { failure, .. } = &state.health else { panic!("{state:?}") };
    assert!(failure.reason.contains("`refs/tags/deep` cannot be followed"), "{failure:?}");
    is_at(&node, &upstream.git(&["rev-parse", "HEAD"])).await;
    node.stop().await;
}
