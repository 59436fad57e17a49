//! Moved refs of a repository on this machine are noticed without a poll.

use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn moved_refs_are_published_without_a_poll_also_after_the_folder_was_replaced() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = home.config(&upstream.url());
    config.repositories[0].watch_refs = true;
    config.services[0].followed_ref = "release/next/main".parse().unwrap();
    let node = home.start(config).await;
    let published = async |commit: String| node.published(|descriptor| commit_of(descriptor) == commit).await;

    // In folders that appear while they are watched.
    upstream.git(&["checkout", "--quiet", "-b", "release/next/main"]);
    published(upstream.push("deploy/app.yaml", b"replicas: 2\n")).await;
    // The folders go when refs are packed.
    Git::at(upstream.bare()).feed(["pack-refs", "--all"], b"");
    published(upstream.push("deploy/app.yaml", b"replicas: 3\n")).await;

    upstream.take_away();
    upstream.give_back();
    published(upstream.push("deploy/app.yaml", b"replicas: 4\n")).await;
    node.stop().await;
}
