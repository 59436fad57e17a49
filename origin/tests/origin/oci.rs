//! Versions for clients of the OCI distribution API.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use weir_protocol::digest::Sha256;
use weir_protocol::oci::{OciForm, TARBALL_LAYER_TYPE};

use crate::helm_repository::Charts;
use crate::prelude::*;
use crate::registry_server::{FLUX_CONFIG, FLUX_CONTENT, RegistryServer, gzip_tar};
use crate::{artifacts, chart_registries, chart_signatures};

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
    let committed = upstream.git(&["show", "-s", "--format=%ct", commit_of(&after)]).parse().unwrap();
    let created = humantime::parse_rfc3339(annotation("org.opencontainers.image.created")).unwrap();
    assert_eq!(created, SystemTime::UNIX_EPOCH + Duration::from_secs(committed));
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

/// A stored blob, put together from its slices.
async fn blob(node: &Node, form: &OciForm, sha256: &Sha256) -> Vec<u8> {
    let blob = form.blob(sha256).expect("the manifest names it");
    let first = node.object(&repository(), &blob.digest).await;
    let mut body = Vec::new();
    match blob.frames {
        1 => body.extend_from_slice(&first),
        _ => {
            for frame in Manifest::parse(&first).unwrap().frames() {
                body.extend_from_slice(&node.object(&repository(), &frame.digest).await);
            }
        }
    }
    assert_eq!((Sha256::of(&body), body.len() as u64), (*sha256, blob.size));
    body
}

#[tokio::test]
async fn an_artifact_has_the_digest_and_the_bytes_of_its_upstream() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let mut noise = vec![0; 3 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    let noise: String = noise.iter().map(|byte| char::from(b'0' + byte % 64)).collect();
    let archive = gzip_tar(&[("noise", &noise)]);
    assert!(archive.len() > 2 << 20, "it has several slices");
    let layer = registry.blob(FLUX_CONTENT, &archive);
    let mut manifest = registry.artifact(FLUX_CONFIG, &[layer]);
    manifest["config"] = registry.blob(FLUX_CONFIG, b"{\"a\": 1}");
    let digest = |pushed: &Value| pushed["digest"].as_str().unwrap().to_owned();
    let first = digest(&registry.push(artifacts::NAME, "v1", &manifest));
    let services = [("whole", "v1"), ("picked", "v1"), ("plain", "v1")];
    let keys = json!({ "insecure": true, "step_back_after": "0s" });
    let mut config = artifacts::config(&home, &registry.url(artifacts::NAME), &keys, &services);
    config.oci.enabled = true;
    config.services[1].include = vec!["noise".to_owned()];
    config.services[2].oci = Some(false);
    let node = home.start(config.clone()).await;
    let published = node.published_of("whole", |_| true).await;
    let form = published.oci().unwrap();
    assert_eq!((format!("sha256:{}", form.sha256), form.is_upstream), (first.clone(), true));
    assert_eq!(form.manifest, manifest.to_string());
    assert_eq!(blob(&node, form, &Sha256::of(&archive)).await, archive);
    assert_eq!(blob(&node, form, &Sha256::of(b"{\"a\": 1}")).await, b"{\"a\": 1}");
    let picked = node.published_of("picked", |_| true).await;
    assert_eq!(picked.oci().unwrap().blobs[0].media_type, TARBALL_LAYER_TYPE, "of some files a tarball is made");
    assert_eq!(node.published_of("plain", |_| true).await.oci(), None);

    node.stop().await;

    registry.requests();
    let node = home.start(config).await;
    node.repository(|state| state.applied_polls > 0).await;
    assert_eq!(node.published_of("whole", |_| true).await.bytes(), published.bytes());
    let fetched = registry.requests().into_iter().filter(|request| request.contains("/blobs/")).count();
    assert_eq!(fetched, 0, "what is published is not fetched again");

    // Another manifest with the same layer is the same content by another digest.
    manifest["annotations"] = json!({ "org.opencontainers.image.created": "2026-02-02T00:00:00Z" });
    let second = digest(&registry.push(artifacts::NAME, "v1", &manifest));
    node.poll().await;
    let is_second = |now: &Descriptor| now.oci().is_some_and(|form| format!("sha256:{}", form.sha256) == second);
    let revised = node.published_of("whole", is_second).await;
    assert_eq!(revised.publication(), published.publication());
    node.stop().await;
}

#[tokio::test]
async fn a_blob_that_is_missing_for_a_moment_decides_nothing() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let push = |tag: &str| {
        let mut manifest =
            registry.artifact(FLUX_CONFIG, &[registry.blob(FLUX_CONTENT, &gzip_tar(&[("map.yaml", tag)]))]);
        manifest["config"] = registry.blob(FLUX_CONFIG, tag.as_bytes());
        registry.push(artifacts::NAME, tag, &manifest);
        registry.replace_blob(&manifest["config"], None);
        manifest["config"].clone()
    };
    let (config, _) = (push("moment"), push("lasting"));
    let services = [("moment", "moment"), ("lasting", "lasting")];
    let keys = json!({ "insecure": true, "poll_interval": "1s", "min_poll_interval": "0s" });
    let mut settings = artifacts::config(&home, &registry.url(artifacts::NAME), &keys, &services);
    settings.oci.enabled = true;
    let node = home.start(settings).await;
    for service in ["moment", "lasting"] {
        let reason = artifacts::failure(&node, service).await;
        assert!(reason.contains("is not complete: something of the manifest of"), "{reason}");
    }
    registry.replace_blob(&config, Some(b"moment"));
    for (service, is_whole) in [("moment", true), ("lasting", false)] {
        assert_eq!(node.published_of(service, |_| true).await.oci().unwrap().is_upstream, is_whole, "{service}");
    }
    node.stop().await;
}

#[tokio::test]
async fn what_is_no_single_archive_is_an_artifact_of_its_files() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let layer = registry.blob(FLUX_CONTENT, &gzip_tar(&[("map.yaml", "a: 1")]));
    let manifest = registry.artifact(FLUX_CONFIG, std::slice::from_ref(&layer));
    let pushed = registry.push(artifacts::NAME, "one", &manifest);
    registry.push(artifacts::NAME, "latest", &registry.index(&[(pushed.clone(), "linux/amd64")]));
    let other = registry.blob("application/x", b"other");
    registry.push(artifacts::NAME, "two", &registry.artifact(FLUX_CONFIG, &[other, layer.clone()]));
    let image = "application/vnd.oci.image.config.v1+json";
    registry.push(artifacts::NAME, "image", &registry.artifact(image, &[layer]));
    let keys = json!({ "insecure": true, "platform": "linux/amd64", "layer": { "media_type": FLUX_CONTENT } });
    let services = [("by-index", "latest"), ("by-tag", "one"), ("two", "two"), ("image", "image")];
    let mut config = artifacts::config(&home, &registry.url(artifacts::NAME), &keys, &services);
    config.oci.enabled = true;
    let node = home.start(config).await;
    for (service, is_whole) in [("by-tag", true), ("by-index", true), ("two", false), ("image", false)] {
        let published = node.published_of(service, |_| true).await;
        let form = published.oci().unwrap();
        assert_eq!(form.is_upstream, is_whole, "{service}");
        if is_whole {
            assert_eq!(json!(format!("sha256:{}", form.sha256)), pushed["digest"], "{service}");
        } else {
            assert_eq!(form.blobs[0].media_type, TARBALL_LAYER_TYPE, "{service}");
        }
    }
    node.stop().await;
}

#[tokio::test]
async fn a_chart_in_a_registry_is_served_with_all_that_is_signed() {
    let (home, server) = (Home::new(), RegistryServer::start(None));
    let (manifest, archive) = chart_registries::push(&server, "charts/shop", "1.0.0", "a: 1");
    let mut config = chart_registries::config(&home, &server.url("charts"), &["shop"]);
    (config.repositories[0].insecure, config.oci.enabled) = (true, true);
    let node = home.start(config).await;
    let published = node.published_of("shop", |_| true).await;
    let form = published.oci().unwrap();
    assert_eq!((format!("sha256:{}", form.sha256), form.is_upstream), (manifest, true));
    assert_eq!(blob(&node, form, &Sha256::of(b"signed")).await, b"signed", "the provenance");
    let archive = archive.strip_prefix("sha256:").unwrap().parse().unwrap();
    assert!(!blob(&node, form, &archive).await.is_empty());
    node.stop().await;
}

#[tokio::test]
async fn a_chart_of_a_helm_repository_has_its_archive_its_metadata_and_its_provenance() {
    let ((desk, keyring), home, charts) = (chart_signatures::desk(), Home::new(), Charts::start());
    charts.publish(
        "shop",
        "1.0.0",
        &[("shop/Chart.yaml", b"name: shop\nversion: 1.0.0\n"), ("shop/values.yaml", b"a: 1")],
    );
    chart_signatures::sign(&desk, "alice", &charts, "shop-1.0.0", &chart_signatures::statement(&charts));
    charts.publish("bare", "1.0.0", &[("bare/values.yaml", b"a: 1")]);
    chart_signatures::sign(&desk, "alice", &charts, "bare-1.0.0", &chart_signatures::statement(&charts));
    let mut config = chart_signatures::config(&charts, &home, &["shop", "bare"], Some(&keyring));
    config.oci.enabled = true;
    let node = home.start(config).await;
    let published = node.published_of("shop", |_| true).await;
    let form = published.oci().unwrap();
    let manifest: Value = serde_json::from_str(&form.manifest).unwrap();
    let file = |name: &str| fs::read(charts.dir.path().join(name)).unwrap();
    let named = |bytes: &[u8]| json!(format!("sha256:{}", Sha256::of(bytes)));
    let (archive, provenance) = (file("shop-1.0.0.tgz"), file("shop-1.0.0.tgz.prov"));
    let metadata = b"{\"name\":\"shop\",\"version\":\"1.0.0\"}";
    let digests = [&manifest["config"], &manifest["layers"][0], &manifest["layers"][1]].map(|it| &it["digest"]);
    assert_eq!(digests, [&named(metadata), &named(&archive), &named(&provenance)]);
    for bytes in [&metadata[..], &archive, &provenance] {
        assert_eq!(blob(&node, form, &Sha256::of(bytes)).await, bytes);
    }
    let bare = node.published_of("bare", |_| true).await;
    assert_eq!(bare.oci().unwrap().blobs[0].media_type, TARBALL_LAYER_TYPE, "it has no `Chart.yaml`");
    node.stop().await;
}
