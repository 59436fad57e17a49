//! Gzip forms of tarballs.

use std::io::Read;

use http::Method;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;

use crate::node::{Home, Node, SERVICE, blob_path, flip_a_bit};
use crate::upstream::Upstream;

const MADE: &str = "weir_origin_gzips_total{result=\"made\"}";

fn path(digest: &TarballDigest) -> String {
    format!("/v1/services/{SERVICE}/versions/{digest}/gzip")
}

async fn post(node: &Node, digest: &TarballDigest) -> Descriptor {
    let answer = node.request(Method::POST, &path(digest), &[]).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "application/json"), "{answer:?}");
    let descriptor = Descriptor::parse(answer.body.clone()).unwrap();
    assert_eq!(answer.header("etag"), descriptor.etag());
    descriptor
}

/// Fetches the gzip form of a descriptor and verifies what is in it.
async fn verify(node: &Node, descriptor: &Descriptor) {
    let gzip = descriptor.representation(Encoding::Gzip).unwrap();
    let answer = node.get(&blob_path(&gzip.digest)).await;
    assert_eq!((answer.status.as_u16(), answer.body.len() as u64), (200, gzip.size));
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(&answer.body[..]).read_to_end(&mut tar).unwrap();
    assert_eq!(TarballDigest::of(&tar), descriptor.publication().digest);
}

#[tokio::test]
async fn it_is_made_once_for_all_who_ask_and_stays() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, before) = home.start_published(&upstream).await;
    let digest = before.publication().digest;
    let asked = futures_util::future::join_all((0..8).map(|_| post(&node, &digest))).await;
    assert!(asked.iter().all(|descriptor| descriptor.bytes() == asked[0].bytes()));
    let made = &asked[0];
    assert_eq!(made.publication(), before.publication());
    assert_eq!(made.revision(), before.revision() + 1);
    verify(&node, made).await;
    assert_eq!(node.metric(MADE).await, 1.0);
    assert_eq!(node.descriptor().await.bytes(), made.bytes(), "who follows the service sees it");
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), made.bytes(), "and a poll takes nothing away");
    node.stop().await;

    let node = home.start(home.config(&upstream.url())).await;
    node.poll().await;
    assert_eq!(post(&node, &digest).await.bytes(), made.bytes());
    verify(&node, made).await;
    assert_eq!(node.metric(MADE).await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn a_retained_version_gets_it_too() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, old) = home.start_published(&upstream).await;
    upstream.push("deploy/app.yaml", b"replicas: 9\n");
    node.poll().await;
    let current = node.descriptor().await;
    let made = post(&node, &old.publication().digest).await;
    assert_eq!((made.publication(), made.revision()), (old.publication(), old.revision() + 1));
    verify(&node, &made).await;
    assert_eq!(node.descriptor().await.bytes(), current.bytes());
    let retained = node.get(path(&old.publication().digest).strip_suffix("/gzip").unwrap()).await;
    assert_eq!(retained.body, *made.bytes());
    node.stop().await;
}

#[tokio::test]
async fn a_form_that_is_gone_or_wrong_is_made_again_the_same() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, before) = home.start_published(&upstream).await;
    let made = post(&node, &before.publication().digest).await;
    let gzip = home.blob(&made.representation(Encoding::Gzip).unwrap().digest);
    flip_a_bit(&gzip);
    verify(&node, &made).await;
    std::fs::remove_file(&gzip).unwrap();
    verify(&node, &made).await;
    // Both forms at once: the one is built again and the other is made from it.
    std::fs::remove_file(&gzip).unwrap();
    flip_a_bit(&home.blob(&made.representation(Encoding::Zstd).unwrap().digest));
    verify(&node, &made).await;
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 2.0);
    assert_eq!(node.metric(MADE).await, 4.0);
    std::fs::remove_file(&gzip).unwrap();
    assert_eq!(post(&node, &before.publication().digest).await.bytes(), made.bytes());
    assert_eq!(node.descriptor().await.bytes(), made.bytes());
    node.stop().await;
}

#[tokio::test]
async fn what_is_not_there_has_none_and_only_a_post_makes_one() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = home.start_published(&upstream).await;
    let unknown = node.request(Method::POST, &path(&TarballDigest::of(b"unknown")), &[]).await;
    assert_eq!((unknown.status.as_u16(), unknown.problem().0.as_str()), (404, "no-such-version"));
    let other = path(&descriptor.publication().digest).replace(SERVICE, "other");
    let unknown = node.request(Method::POST, &other, &[]).await;
    assert_eq!((unknown.status.as_u16(), unknown.problem().0.as_str()), (404, "no-such-service"));
    for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE] {
        let answer = node.request(method, &path(&descriptor.publication().digest), &[]).await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "POST"));
    }
    assert_eq!(node.descriptor().await.revision(), 1);
    node.stop().await;
}
