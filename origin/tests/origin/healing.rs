//! Blobs that went bad on the disk, or went.

use http::Method;
use reqwest::StatusCode;
use serde_json::json;
use weir_origin::config::Config;
use weir_shared::descriptor::Descriptor;
use weir_shared::encoding::Encoding;

use crate::node::{Home, Node, SERVICE, blob_of, blob_path, flip_a_bit};
use crate::operator::{Operator, config};
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

/// An origin with operators whose service has a version that Git does not give any more, because its document changed.
struct Changed {
    home: Home,
    config: Config,
    version: Descriptor,
    _upstream: Upstream,
}

impl Changed {
    async fn new(is_pinned: bool, has_gzip: bool) -> Self {
        let (home, upstream) = (Home::new(), Upstream::small());
        let mut config = config(&home, &upstream);
        let node = home.start(config.clone()).await;
        let digest = node.published(|_| true).await.publication().digest;
        if has_gzip {
            let path = format!("/v1/services/{SERVICE}/versions/{digest}/gzip");
            assert_eq!(node.request(Method::POST, &path, &[]).await.status, 200);
        }
        if is_pinned {
            let pinned = Operator::of(&home, &node).put(&format!("/v1/services/{SERVICE}/pin"), json!({})).await;
            assert_eq!(pinned.status, StatusCode::OK);
        }
        let version = node.descriptor().await;
        node.stop().await;
        config.services[0].folder = "docs".parse().unwrap();
        Self { home, config, version, _upstream: upstream }
    }

    /// It runs by the document that it has now.
    async fn start(&self) -> Node {
        let node = self.home.start(self.config.clone()).await;
        node.poll().await;
        node
    }
}

#[tokio::test]
async fn a_pinned_version_that_git_gives_no_more_is_healed_from_its_gzip_form() {
    let changed = Changed::new(true, true).await;
    let node = changed.start().await;
    flip_a_bit(&changed.home.blob(&blob_of(&changed.version)));
    node.get(&blob_path(&blob_of(&changed.version))).await;
    let healed = node.descriptor().await;
    assert_eq!(healed.publication(), changed.version.publication());
    assert!(healed.representation(Encoding::Gzip).is_some());
    node.tarball(&healed).await;
    assert_eq!(node.admin("/readyz").await, (200, "ready\n".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn a_retained_version_that_git_gives_no_more_is_healed_from_its_gzip_form_and_not_dropped() {
    let changed = Changed::new(false, true).await;
    let node = changed.start().await;
    std::fs::remove_file(changed.home.blob(&blob_of(&changed.version))).unwrap();
    node.get(&blob_path(&blob_of(&changed.version))).await;
    let digest = changed.version.publication().digest;
    assert_ne!(node.descriptor().await.publication().digest, digest);
    let retained = node.get(&format!("/v1/services/{SERVICE}/versions/{digest}")).await;
    assert_eq!(retained.status, 200, "{retained:?}");
    node.tarball(&Descriptor::parse(retained.body).unwrap()).await;
    node.stop().await;
}

#[tokio::test]
async fn a_service_that_is_pinned_to_what_cannot_be_had_says_so_until_it_can() {
    let changed = Changed::new(true, false).await;
    let node = changed.start().await;
    let file = changed.home.blob(&blob_of(&changed.version));
    let good = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let path = blob_path(&blob_of(&changed.version));
    assert_eq!(node.get(&path).await.status, 503);
    let service = node.status().await["services"][0].clone();
    assert_eq!((&service["condition"], &service["failure"]["of"]), (&json!("pinned"), &json!("service")), "{service}");
    let (status, told) = node.admin("/readyz").await;
    assert!(status == 200 && told.contains("1 of 1 services are pinned to what cannot be had"), "{told}");
    assert_eq!(node.metric("weir_origin_services_unhealthy").await, 1.0);

    // Somebody puts it back.
    std::fs::write(&file, good).unwrap();
    assert_eq!(node.get(&path).await.status, 200);
    node.poll().await;
    assert_eq!(node.status().await["services"][0]["failure"], json!(null));
    assert_eq!(node.admin("/readyz").await, (200, "ready\n".to_owned()));
    node.stop().await;
}
