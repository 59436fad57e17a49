//! Versions for clients of the OCI distribution API.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use weir_protocol::digest::Sha256;
use weir_protocol::oci::OciForm;

use crate::prelude::*;

/// The form of a descriptor, whose only layer is the tarball with gzip.
async fn form(node: &Node, descriptor: &Descriptor) -> OciForm {
    let form = descriptor.oci().expect("it has a form").clone();
    let body = node.body(descriptor, Encoding::Gzip).await;
    let manifest: Value = serde_json::from_str(&form.manifest).unwrap();
    let layer = &manifest["layers"][0];
    let sha256 = Sha256::of(&body);
    assert_eq!((&layer["digest"], &layer["size"]), (&json!(format!("sha256:{sha256}")), &json!(body.len())));
    assert_eq!(form.blob(&sha256).unwrap().digest, descriptor.representation(Encoding::Gzip).unwrap().digest);
    let mut tar = Vec::new();
    MultiGzDecoder::new(body.as_slice()).read_to_end(&mut tar).unwrap();
    assert_eq!(TarballDigest::of(&tar), descriptor.publication().digest);
    form
}

#[tokio::test]
async fn operators_turn_the_form_on_and_off_without_a_new_generation() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = serve(&upstream);
    let (node, operator) = operated(&home).await;
    let mut repository = repository_at(&server);
    operator.put("/v1/repositories/shop", repository.clone()).await;
    let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy" });
    operator.put("/v1/services/shop-prod", document.clone()).await;
    operator.put("/v1/services/a..b", document.clone()).await;
    let before = node.published(|_| true).await;
    assert_eq!((before.oci(), before.representation(Encoding::Gzip)), (None, None));

    repository["oci"] = true.into();
    assert_eq!(operator.put("/v1/repositories/shop", repository).await.status, StatusCode::OK);
    let after = node.published(|now| now.oci().is_some()).await;
    assert_eq!(after.publication(), before.publication());
    let manifest: Value = serde_json::from_str(&form(&node, &after).await.manifest).unwrap();
    let annotation = |name: &str| manifest["annotations"][name].as_str().unwrap();
    assert_eq!(annotation("dev.weir.service"), SERVICE);
    assert_eq!(annotation("org.opencontainers.image.source"), server.url("bare.git"));
    assert_eq!(annotation("org.opencontainers.image.revision"), format!("main@sha1:{}", commit_of(&after)));
    assert_eq!(node.published_of("a..b", |_| true).await.oci(), None, "it did not ask, and has no name of OCI");

    let with = |oci: bool| {
        let mut document = document.clone();
        document["oci"] = oci.into();
        document
    };
    let refused = operator.put("/v1/services/a..b", with(true)).await;
    assert_eq!(
        (refused.status, &refused.body["errors"][0]["field"]),
        (StatusCode::BAD_REQUEST, &json!("oci")),
        "{refused:?}"
    );
    operator.put("/v1/services/shop-prod", with(false)).await;
    let off = node.published(|now| now.oci().is_none()).await;
    assert_eq!((off.publication(), off.representation(Encoding::Gzip)), (before.publication(), None));
    node.stop().await;
}

#[tokio::test]
async fn a_reused_frame_that_is_lost_stops_no_publication() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut noise = vec![0; 9 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    upstream.push("deploy/large", &noise);
    let mut config = home.config(&upstream.url());
    config.oci.enabled = true;
    let node = home.start(config).await;
    let before = node.published(|_| true).await;
    let first = form(&node, &before).await;
    assert!(!first.manifest.contains("image.source"), "it is a path of this machine: {}", first.manifest);
    let blob = &first.blobs[0];
    let frames = Manifest::parse(&node.object(&repository(), &blob.digest).await).unwrap();
    std::fs::remove_file(home.object(&frames.frames()[1].digest)).unwrap();

    upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.poll().await;
    let after = node.published(|now| now.publication().digest != before.publication().digest).await;
    assert_ne!(form(&node, &after).await.sha256, first.sha256);
    assert_eq!(
        node.metric("weir_origin_object_rebuilds_total{result=\"rebuilt\"}").await,
        0.0,
        "no request had to wait"
    );
    node.stop().await;
}

#[tokio::test]
async fn a_service_of_a_tag_has_its_version() {
    let (home, upstream) = (Home::new(), Upstream::small());
    upstream.git(&["tag", "v1.2.0"]);
    upstream.git(&["push", "--quiet", "origin", "v1.2.0"]);
    let mut config = home.config(&upstream.url());
    config.services[0].followed_ref = "semver:^1".parse().unwrap();
    config.services[0].oci = Some(true);
    let node = home.start(config).await;
    let published = node.published(|_| true).await;
    assert_eq!(published.publication().version.as_ref().map(|version| version.as_str()), Some("v1.2.0"));
    let manifest: Value = serde_json::from_str(&form(&node, &published).await.manifest).unwrap();
    let annotations = &manifest["annotations"];
    assert_eq!(annotations["org.opencontainers.image.version"], "v1.2.0");
    assert_eq!(annotations["org.opencontainers.image.revision"], format!("v1.2.0@sha1:{}", commit_of(&published)));
    node.stop().await;
}
