//! From a push to a descriptor and its frames.

use crate::prelude::*;
use crate::stored_state::record_file;

#[tokio::test]
async fn a_descriptor_that_is_known_is_not_sent_again() {
    let (_home, _upstream, node, descriptor) = started().await;
    let path = format!("/v1/services/{SERVICE}");
    let first = node.get(&path).await;
    assert_eq!(first.header("etag"), descriptor.etag());
    assert_eq!(first.header("content-type"), "application/json");
    assert_eq!(first.header("cache-control"), "no-cache");

    let again = node.request(Method::GET, &path, &[("if-none-match", &descriptor.etag())]).await;
    assert_eq!((again.status.as_u16(), again.body.len()), (304, 0));
    assert_eq!(again.header("etag"), descriptor.etag());
    let head = node.request(Method::HEAD, &path, &[("if-none-match", "\"1.1\"")]).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), descriptor.bytes().len().to_string());
    assert_eq!(node.metric("weir_origin_descriptor_requests_total{status=\"304\"}").await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn a_push_is_a_new_generation_and_the_old_version_is_retained() {
    let (_home, upstream, node, old) = started().await;
    assert_eq!(commit_of(&old), upstream.git(&["rev-parse", "main"]));
    assert_eq!(names(&node.tarball(&old).await), ["app.yaml"], "relative to the folder, and nothing outside of it");
    let commit = upstream.push("deploy/db.yaml", b"size: 3\n");
    node.poll().await;
    let new = node.descriptor().await;
    assert_eq!(commit_of(&new), commit);
    assert!(new.publication().generation > old.publication().generation);
    assert_ne!(new.publication().digest, old.publication().digest);
    assert_eq!(names(&node.tarball(&new).await), ["app.yaml", "db.yaml"]);

    let retained = node.get(&format!("/v1/services/{SERVICE}/versions/{}", old.publication().digest)).await;
    assert_eq!((retained.status.as_u16(), &retained.body), (200, old.bytes()));
    node.tarball(&old).await;

    // Back to what it was: the content is known, and is current again.
    upstream.git(&["revert", "--no-edit", "HEAD"]);
    upstream.git(&["push", "--quiet", "origin", "HEAD"]);
    node.poll().await;
    let back = node.descriptor().await;
    assert_eq!(back.publication().digest, old.publication().digest);
    assert!(back.publication().generation > new.publication().generation);
    assert_eq!(node.metric("weir_origin_builds_total{result=\"built\"}").await, 2.0);
    assert_eq!(node.metric("weir_origin_publications_total").await, 3.0);
    node.stop().await;
}

#[tokio::test]
async fn a_push_outside_the_folder_publishes_nothing_and_stores_only_its_tip() {
    let (home, upstream, node, old) = started().await;
    let record = || -> Value {
        let text = std::fs::read_to_string(record_file(&home)).unwrap();
        serde_json::from_str(text.split_once('\n').unwrap().1).unwrap()
    };
    let before = record();
    let commit = upstream.push("docs/more.md", b"more words\n");
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), old.bytes());
    let is_tip = |tips: &Value| {
        tips.as_object().is_some_and(|tips| tips.values().any(|tip| *tip == format!("sha1:{commit}").as_str()))
    };
    until(async || is_tip(&record()["tips"])).await;
    assert_eq!(record()["pages"], before["pages"]);
    assert_eq!(node.metric("weir_origin_builds_total{result=\"built\"}").await, 1.0);
    assert_eq!(node.metric("weir_origin_publications_total").await, 1.0);
    // It follows its ref all the same, and says how far.
    let service = node.status().await["services"][0].clone();
    assert_eq!(service["condition"], "following");
    assert_eq!(service["seen"]["revision_id"], format!("sha1:{commit}"));
    node.stop().await;
}

#[tokio::test]
async fn a_service_with_gzip_has_it_stored_and_one_without_has_not() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = home.config(&upstream.url());
    let node = home.start(config.clone()).await;
    let without = node.published(|_| true).await;
    assert_eq!(without.representations().len(), 1);
    node.stop().await;
    config.services[0].gzip = true;
    let node = home.start(config).await;
    let with = node.published(|now| now.representation(Encoding::Gzip).is_some()).await;
    assert_eq!(with.publication(), without.publication(), "the same content");
    let gzip = node.body(&with, Encoding::Gzip).await;
    let mut tar = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(gzip.as_slice()), &mut tar).unwrap();
    assert_eq!(tar, node.tarball(&with).await);
    node.stop().await;
}

#[tokio::test]
async fn a_deleted_branch_keeps_its_last_publication() {
    let (home, upstream) = (Home::new(), Upstream::small());
    upstream.git(&["push", "--quiet", "origin", "HEAD:refs/heads/other"]);
    let (node, old) = home.start_published(&upstream).await;
    upstream.git(&["--git-dir", upstream.bare().to_str().unwrap(), "update-ref", "-d", "refs/heads/main"]);
    node.poll().await;
    assert_eq!(node.descriptor().await.version(), old.version());
    node.tarball(&old).await;
    let status = node.status().await;
    let service = &status["services"][0];
    assert_eq!(service["condition"], "unhealthy");
    assert_eq!(service["failure"]["step"], "resolve");
    assert!(service["failure"]["reason"].as_str().unwrap().contains("main"), "{service}");
    assert_eq!(service["published"]["generation"], old.publication().generation);
    assert_eq!(node.metric("weir_origin_services_unhealthy").await, 1.0);
    assert_eq!(node.metric("weir_origin_repository_healthy{repository=\"shop\"}").await, 1.0);

    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.poll().await;
    assert_eq!(commit_of(&node.descriptor().await), commit);
    assert_eq!(node.status().await["services"][0]["condition"], "following");
    assert_eq!(node.metric("weir_origin_services_unhealthy").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn a_deleted_folder_keeps_its_last_publication() {
    let (_home, upstream, node, old) = started().await;
    upstream.git(&["rm", "--quiet", "-r", "deploy"]);
    upstream.push("docs/gone.md", b"the folder is gone\n");
    node.poll().await;
    assert_eq!(node.descriptor().await.version(), old.version());
    let status = node.status().await;
    let reason = status["services"][0]["failure"]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("deploy"), "{reason}");
    node.stop().await;
}

/// Parsing takes many times the memory of the file.
#[tokio::test]
async fn a_large_attribute_file_fails_its_service_and_no_other() {
    let (home, upstream) = (Home::new(), Upstream::small());
    upstream.push("docs/.gitattributes", "*.md text\n".repeat(200_000).as_bytes());
    let mut config = home.config(&upstream.url());
    also(&mut config, "docs");
    let node = home.start(config).await;
    node.published(|_| true).await;
    node.repository(|state| state.applied_polls > 0).await;
    let status = node.status().await;
    let of =
        |name: &str| status["services"].as_array().unwrap().iter().find(|service| service["name"] == name).unwrap();
    assert_eq!(of(SERVICE)["condition"], "following");
    assert_eq!(of("docs")["condition"], "unhealthy", "{status}");
    let reason = of("docs")["failure"]["reason"].as_str().unwrap();
    assert!(reason.contains("`docs/.gitattributes` has 2000000 bytes"), "{reason}");
    node.stop().await;
}
