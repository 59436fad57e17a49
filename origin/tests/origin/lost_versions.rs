//! Versions of which an object is lost, and whose commit does not bring it back.

use std::sync::Arc;

use weir_origin::config::ServiceConfig;

use crate::lfs_server::Manner;
use crate::lfs_services::Shop;
use crate::node::{Home, object_of, object_path, repository};
use crate::upstream::Upstream;

#[tokio::test]
async fn a_version_whose_commit_is_gone_is_rebuilt_from_another_with_the_same_content() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = home.start_published(&upstream).await;
    node.stop().await;
    upstream.git(&["commit", "--quiet", "--amend", "--message", "the same by another name"]);
    upstream.git(&["push", "--quiet", "--force", "origin", "HEAD"]);
    // A new clone has only what branches and tags have.
    std::fs::remove_dir_all(home.data_dir().join("mirrors")).unwrap();
    std::fs::remove_file(home.object(&object_of(&descriptor))).unwrap();

    let node = home.start(home.config(&upstream.url())).await;
    node.poll().await;
    node.tarball(&descriptor).await;
    assert_eq!(node.descriptor().await.bytes(), descriptor.bytes(), "nothing is published for that");
    node.stop().await;
}

#[tokio::test]
async fn what_cannot_be_rebuilt_is_not_tried_by_each_request() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, old) = home.start_published(&upstream).await;
    node.stop().await;
    upstream.git(&["reset", "--quiet", "--hard", "HEAD~1"]);
    upstream.push("deploy/app.yaml", b"replicas: 2\n");
    std::fs::remove_dir_all(home.data_dir().join("mirrors")).unwrap();
    std::fs::remove_file(home.object(&object_of(&old))).unwrap();

    let node = home.start(home.config(&upstream.url())).await;
    node.published(|now| now.publication().generation > old.publication().generation).await;
    node.poll().await;
    for _ in 0..5 {
        assert_eq!(node.get(&object_path(&object_of(&old))).await.status, 503);
    }
    let failed = "weir_origin_object_rebuilds_total{result=\"failed\"}";
    // A second time at the most: a mirror that lacks a commit is cloned anew, once an hour.
    let times = node.metric(failed).await;
    assert!((1.0..=2.0).contains(&times), "{times}");
    node.stop().await;
}

#[tokio::test]
async fn who_waits_for_a_rebuild_keeps_no_other_object_from_others() {
    let shop = Shop::new();
    let large = shop.server.hold(&[7; 1 << 20]);
    shop.git.write("deploy/model.bin", &large);
    shop.git.write("plain/a.txt", "1");
    shop.git.commit("a large model");
    let mut config = shop.config();
    config.limits.concurrent_objects = 1;
    let mut plain = ServiceConfig::new("plain".parse().unwrap(), repository());
    (plain.revision, plain.folder) = ("main".parse().unwrap(), "plain".parse().unwrap());
    config.services.push(plain);
    let node = Arc::new(shop.home.start(config).await);
    let (lost, other) = (node.published(|_| true).await, node.published_of("plain", |_| true).await);

    // The build waits for a file that takes hours.
    std::fs::remove_file(shop.home.object(&object_of(&lost))).unwrap();
    std::fs::remove_file(shop.object()).unwrap();
    shop.behave(Manner { drips: true, only: Some(large), ..Manner::default() });
    let asking = node.clone();
    let waits = tokio::spawn(async move { asking.get(&object_path(&object_of(&lost))).await.status });
    shop.server.has_begun_to_drip().await;
    node.object(&other.publication().repository, &object_of(&other)).await;
    assert!(!waits.is_finished());
    assert_eq!(waits.await.unwrap(), 503);
    Arc::into_inner(node).unwrap().stop().await;
}
