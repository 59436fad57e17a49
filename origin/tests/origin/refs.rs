//! Services that follow versions and commits.

use crate::prelude::*;

#[tokio::test]
async fn a_service_follows_tagged_versions() {
    let (home, upstream) = (Home::new(), Upstream::small());
    upstream.git(&["tag", "v1.0.0"]);
    upstream.git(&["push", "--quiet", "origin", "v1.0.0"]);
    let mut config = home.config(&upstream.url());
    config.services[0].followed_ref = "semver:1.x".parse().unwrap();
    let node = home.start(config).await;
    let first = node.published(|_| true).await;
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.poll().await;
    assert_eq!(node.descriptor().await.version(), first.version(), "a push alone is no version");
    upstream.git(&["tag", "v1.1.0"]);
    upstream.git(&["push", "--quiet", "origin", "v1.1.0"]);
    node.poll().await;
    assert_eq!(commit_of(&node.descriptor().await), commit);
    assert_eq!(node.status().await["services"][0]["ref"], "semver:1.x");
    node.stop().await;
}

#[tokio::test]
async fn an_unreachable_pinned_commit_keeps_its_published_version() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let commit = upstream.git(&["rev-parse", "HEAD"]);
    upstream.git(&["push", "--quiet", "origin", "HEAD:refs/pull/7/head"]);
    let mut config = home.config(&upstream.url());
    config.services[0].followed_ref = "refs/pull/7/head".parse().unwrap();
    let pinned = also(&mut config, "pinned");
    (pinned.folder, pinned.followed_ref) = ("deploy".parse().unwrap(), commit.parse().unwrap());
    let node = home.start(config).await;
    assert_eq!(commit_of(&*node.published(|_| true).await), commit);
    let pinned = |node: &crate::node::Node| node.running.service(&"pinned".parse().unwrap()).unwrap();
    let kept = pinned(&node).wait_for(Option::is_some).await.unwrap().clone().unwrap();

    upstream.git(&["commit", "--quiet", "--amend", "--message", "another history"]);
    let forced = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    upstream.git(&["push", "--quiet", "--force", "origin", "HEAD:refs/pull/7/head"]);
    node.poll().await;
    let published = node.running.service(&service()).unwrap().borrow().clone().unwrap();
    assert_eq!(commit_of(&published), forced);
    let status = node.status().await;
    let services = status["services"].as_array().unwrap();
    let of_the_pin = services.iter().find(|each| each["name"] == "pinned").unwrap();
    // The first commit becomes unreachable with its branch.
    assert_eq!(of_the_pin["condition"], "unhealthy", "{of_the_pin}");
    let reason = of_the_pin["failure"]["reason"].as_str().unwrap();
    assert!(reason.contains(&commit) && reason.contains("is on no branch or tag"), "{reason}");
    assert_eq!(pinned(&node).borrow().clone().unwrap().version(), kept.version());
    node.stop().await;
}
