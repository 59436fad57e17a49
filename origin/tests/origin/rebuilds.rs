//! Rebuilds of corrupt and missing objects.

use crate::lfs_server::LfsBehavior;
use crate::prelude::*;

/// One read for the response to an edge, and one of the worker before it rebuilds.
async fn corrupt_reads(node: &Node) -> f64 {
    node.metric("weir_origin_store_corrupt_objects_total").await
}

#[tokio::test]
async fn a_corrupt_object_is_never_sent_and_is_rebuilt_without_the_upstream() {
    let (home, upstream, node, descriptor) = started().await;
    let object = object_of(&descriptor);
    upstream.take_away();
    flip_a_bit(&home.object(&object));
    node.tarball(&descriptor).await;
    let found = corrupt_reads(&node).await;
    assert!(found > 0.0);
    assert_eq!(node.metric("weir_origin_object_rebuilds_total{result=\"rebuilt\"}").await, 1.0);
    assert_eq!(node.descriptor().await.version(), descriptor.version());
    node.tarball(&descriptor).await;
    assert_eq!(corrupt_reads(&node).await, found, "it is whole again");
    node.stop().await;
}

#[tokio::test]
async fn a_permanently_unreadable_file_is_replaced() {
    let (home, _upstream, node, descriptor) = started().await;
    let file = home.object(&object_of(&descriptor));
    std::fs::remove_file(&file).unwrap();
    // A symlink to itself cannot be opened.
    std::os::unix::fs::symlink(&file, &file).unwrap();
    node.tarball(&descriptor).await;
    assert!(file.symlink_metadata().unwrap().is_file());
    node.stop().await;
}

#[tokio::test]
async fn a_missing_object_is_rebuilt_once_for_all_requests() {
    let (home, _upstream, node, descriptor) = started().await;
    std::fs::remove_file(home.object(&object_of(&descriptor))).unwrap();
    let asked = futures_util::future::join_all((0..8).map(|_| node.tarball(&descriptor))).await;
    assert!(asked.iter().all(|tar| *tar == asked[0]));
    assert_eq!(node.metric("weir_origin_object_rebuilds_total{result=\"rebuilt\"}").await, 1.0);
    assert_eq!(corrupt_reads(&node).await, 0.0);

    std::fs::remove_file(home.object(&object_of(&descriptor))).unwrap();
    let head = node.request(Method::HEAD, &object_path(&object_of(&descriptor)), &[]).await;
    assert_eq!(head.status, 200);
    node.stop().await;
}

#[tokio::test]
async fn a_missing_frame_of_many_and_a_missing_manifest_are_rebuilt() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut noise = vec![0; 9 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    upstream.push("deploy/large", &noise);
    let (node, descriptor) = home.start_published(&upstream).await;
    let manifest = Manifest::parse(&node.object(&repository(), &object_of(&descriptor)).await).unwrap();
    assert!(manifest.frames().len() > 2);
    std::fs::remove_file(home.object(&manifest.frames()[1].digest)).unwrap();
    node.tarball(&descriptor).await;
    std::fs::remove_file(home.object(&object_of(&descriptor))).unwrap();
    node.tarball(&descriptor).await;
    assert_eq!(node.metric("weir_origin_object_rebuilds_total{result=\"rebuilt\"}").await, 2.0);
    assert_eq!(node.descriptor().await.bytes(), descriptor.bytes());
    node.stop().await;
}

#[tokio::test]
async fn a_service_pinned_to_a_lost_version_is_degraded_until_it_is_rebuilt() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = config(&home, &upstream);
    let node = home.start(config.clone()).await;
    node.published(|_| true).await;
    let pinned = Operator::of(&home, &node).put(&format!("/v1/services/{SERVICE}/pin"), json!({})).await;
    assert_eq!(pinned.status, StatusCode::OK);
    let version = node.descriptor().await;
    node.stop().await;
    // With the current definition of the service its commit has another content.
    config.services[0].folder = "docs".parse().unwrap();
    let node = home.start(config.clone()).await;
    node.poll().await;
    let file = home.object(&object_of(&version));
    std::fs::remove_file(&file).unwrap();
    let path = object_path(&object_of(&version));
    assert_eq!(node.get(&path).await.status, 503);
    let service = node.status().await["services"][0].clone();
    assert_eq!((&service["condition"], &service["failure"]["of"]), (&json!("pinned"), &json!("service")), "{service}");
    let (status, reply) = node.admin("/readyz").await;
    assert!(status == 200 && reply.contains("1 of 1 services are pinned to lost versions"), "{reply}");
    assert_eq!(node.metric("weir_origin_services_unhealthy").await, 1.0);
    node.stop().await;

    // The definition is restored.
    config.services[0].folder = "deploy".parse().unwrap();
    // Without operators nothing of theirs can be missing, which a new store says until they define something.
    config.operator_listen = None;
    let node = home.start(config).await;
    node.poll().await;
    assert_eq!(node.get(&path).await.status, 200);
    assert_eq!(node.status().await["services"][0]["failure"], json!(null));
    assert_eq!(node.admin("/readyz").await, (200, "ready\n".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn a_version_without_its_commit_is_rebuilt_from_another_with_the_same_content() {
    let (home, upstream, node, descriptor) = started().await;
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
async fn a_failed_rebuild_is_not_retried_by_each_request() {
    let (home, upstream, node, old) = started().await;
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
    // A second time at the most: a mirror that lacks a commit is cloned again, once an hour.
    let times = node.metric(failed).await;
    assert!((1.0..=2.0).contains(&times), "{times}");
    node.stop().await;
}

#[tokio::test]
async fn a_waiting_rebuild_delays_no_other_object() {
    let shop = Shop::new();
    let large = shop.server.store(&[7; 1 << 20]);
    shop.git.write("deploy/model.bin", &large);
    shop.git.commit_file("plain/a.txt", "1");
    let mut config = shop.config();
    config.limits.concurrent_objects = 1;
    also(&mut config, "plain").lfs = false;
    let node = Arc::new(shop.home.start(config).await);
    let (lost, other) = (node.published(|_| true).await, node.published_of("plain", |_| true).await);

    // The build waits for a file that takes hours.
    std::fs::remove_file(shop.home.object(&object_of(&lost))).unwrap();
    std::fs::remove_file(shop.object()).unwrap();
    shop.set_behavior(LfsBehavior { slow: true, only_object: Some(large), ..LfsBehavior::default() });
    let asking = node.clone();
    let waits = tokio::spawn(async move { asking.get(&object_path(&object_of(&lost))).await.status });
    shop.server.wait_for_slow_download().await;
    node.object(&other.publication().repository, &object_of(&other)).await;
    assert!(!waits.is_finished());
    assert_eq!(waits.await.unwrap(), 503);
    Arc::into_inner(node).unwrap().stop().await;
}
