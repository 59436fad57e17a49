//! Blobs that went bad on the disk, or went.

use http::Method;

use crate::node::{Home, blob_of, blob_path, flip_a_bit};
use crate::upstream::Upstream;

#[tokio::test]
async fn a_flipped_bit_never_leaves_and_is_healed_without_the_upstream() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = home.start_published(&upstream).await;
    let blob = blob_of(&descriptor);
    upstream.take_away();
    flip_a_bit(&home.blob(&blob));
    node.tarball(&descriptor).await;
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 1.0);
    assert_eq!(node.metric("weir_origin_blob_heals_total{result=\"healed\"}").await, 1.0);
    assert_eq!(node.descriptor().await.version(), descriptor.version());
    node.tarball(&descriptor).await;
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn a_blob_that_is_gone_is_built_again_once_for_all_who_ask() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = home.start_published(&upstream).await;
    std::fs::remove_file(home.blob(&blob_of(&descriptor))).unwrap();
    let asked = futures_util::future::join_all((0..8).map(|_| node.tarball(&descriptor))).await;
    assert!(asked.iter().all(|tar| *tar == asked[0]));
    assert_eq!(node.metric("weir_origin_blob_heals_total{result=\"healed\"}").await, 1.0);
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 0.0);

    std::fs::remove_file(home.blob(&blob_of(&descriptor))).unwrap();
    let head = node.request(Method::HEAD, &blob_path(&blob_of(&descriptor)), &[]).await;
    assert_eq!(head.status, 200);
    node.stop().await;
}

#[tokio::test]
async fn a_retained_version_is_healed_from_its_own_commit() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, old) = home.start_published(&upstream).await;
    upstream.push("deploy/app.yaml", b"replicas: 9\n");
    node.poll().await;
    flip_a_bit(&home.blob(&blob_of(&old)));
    node.tarball(&old).await;
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 1.0);
    assert!(node.descriptor().await.publication().generation > old.publication().generation);
    node.stop().await;
}

#[tokio::test]
async fn a_truncated_blob_is_a_corrupt_one() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = home.start_published(&upstream).await;
    let file = home.blob(&blob_of(&descriptor));
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(20).unwrap();
    node.tarball(&descriptor).await;
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 1.0);
    node.stop().await;
}
