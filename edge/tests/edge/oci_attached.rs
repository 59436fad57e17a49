//! What is attached to the manifest of a version: its signed publication, and signatures of cosign.

use serde_json::Value;
use weir_protocol::attached::PUBLICATION_ARTIFACT_TYPE;
use weir_protocol::cosign::signature_tag;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::Sha256;
use weir_protocol::envelope::{Envelope, PUBLICATION_TYPE};
use weir_protocol::token::SigningKey;

use crate::client::Client;
use crate::site::{Site, a_moment, always_revalidating};
use crate::test_origin::Tarball;

/// A descriptor whose publication and manifest this key signed.
pub(crate) fn signed(tarball: &Tarball, key: SigningKey) -> Descriptor {
    let unsigned = tarball.descriptor("shop", 7, 1);
    Descriptor::signed(unsigned.fields().clone(), &[key], true)
}

async fn document(client: &mut Client, path: &str) -> Value {
    let reply = client.get(path, &[]).await;
    assert_eq!(reply.status, 200, "{path}: {:?}", reply.bytes());
    serde_json::from_slice(reply.bytes()).unwrap()
}

#[tokio::test]
async fn what_is_attached_to_a_manifest_is_pulled_by_digest_and_by_tag_also_in_an_outage() {
    let mut site = Site::prepare().await;
    always_revalidating(&mut site.config);
    site.start_edge().await;
    let (tarball, (key, _)) = (Tarball::random(1, 1000).and_oci(), SigningKey::generate().unwrap());
    let public = key.public().clone();
    let descriptor = site.origin.put("shop", &tarball, signed(&tarball, key));
    let digest = tarball.form().unwrap().sha256;
    let mut client = site.client("h2").await;
    assert_eq!(client.get("/v2/weir/shop/tags/list", &[]).await.status, 200);
    site.settled().await;
    site.origin.go_down().await;
    a_moment().await;

    let referrers = format!("/v2/weir/shop/referrers/sha256:{digest}");
    let all = document(&mut client, &referrers).await;
    let listed = all["manifests"].as_array().unwrap();
    let types: Vec<_> = listed.iter().map(|it| it["artifactType"].as_str().unwrap()).collect();
    assert_eq!(types, ["application/vnd.dev.sigstore.bundle.v0.3+json", PUBLICATION_ARTIFACT_TYPE]);
    let mut blobs = Vec::new();
    for it in listed {
        let path = format!("/v2/weir/shop/manifests/{}", it["digest"].as_str().unwrap());
        let reply = client.get(&path, &[]).await;
        assert_eq!((reply.status, reply.header("docker-content-digest")), (200, it["digest"].as_str().unwrap()));
        assert_eq!(it["digest"], format!("sha256:{}", Sha256::of(reply.bytes())));
        assert_eq!(
            (reply.header("content-type"), it["size"].as_u64()),
            (it["mediaType"].as_str().unwrap(), Some(reply.bytes().len() as u64))
        );
        assert_eq!(client.head(&path, &[]).await.header("content-length"), reply.bytes().len().to_string());
        let manifest: Value = serde_json::from_slice(reply.bytes()).unwrap();
        assert_eq!(manifest["subject"]["digest"], format!("sha256:{digest}"));
        assert_eq!((&manifest["artifactType"], &manifest["annotations"]), (&it["artifactType"], &it["annotations"]));
        let layer = manifest["layers"][0]["digest"].as_str().unwrap();
        let blob = client.get(&format!("/v2/weir/shop/blobs/{layer}"), &[]).await;
        assert_eq!(layer, format!("sha256:{}", Sha256::of(blob.bytes())));
        blobs.push(blob.bytes().clone());
        let of_it = document(&mut client, &path.replace("manifests", "referrers")).await;
        assert_eq!(of_it["manifests"], serde_json::json!([]), "nothing refers to what is attached");
    }
    let envelope: Envelope = serde_json::from_slice(&blobs[1]).unwrap();
    assert_eq!(Some(&envelope), descriptor.envelope().as_ref());
    assert!(envelope.signed_by(&public, PUBLICATION_TYPE).is_some());

    let filtered = client.get(&format!("{referrers}?artifactType={PUBLICATION_ARTIFACT_TYPE}"), &[]).await;
    assert_eq!(filtered.header("oci-filters-applied"), "artifactType");
    let filtered: Value = serde_json::from_slice(filtered.bytes()).unwrap();
    assert_eq!(filtered["manifests"], serde_json::json!([listed[1]]));

    // The older form is found by its tag alone. What is missing is so at once, and not only once an origin answers.
    let at_tag = document(&mut client, &format!("/v2/weir/shop/manifests/{}", signature_tag(&digest))).await;
    assert_eq!(at_tag["layers"][0]["mediaType"], "application/vnd.dev.cosign.simplesigning.v1+json");
    let attestations = client.get(&format!("/v2/weir/shop/manifests/sha256-{digest}.att"), &[]).await;
    assert_eq!(attestations.status, 404);
    assert!(String::from_utf8_lossy(attestations.bytes()).contains("MANIFEST_UNKNOWN"));
    let tags = client.get("/v2/weir/shop/tags/list", &[]).await;
    assert!(tags.status == 200 && !String::from_utf8_lossy(tags.bytes()).contains("sha256-"), "{:?}", tags.bytes());
}

#[tokio::test]
async fn what_is_attached_to_a_retained_version_is_as_new_as_the_list() {
    let mut site = Site::prepare().await;
    always_revalidating(&mut site.config);
    site.start_edge().await;
    let [old, new] = [1, 2].map(|seed| Tarball::random(seed, 1000).and_oci());
    let sign_again = |site: &Site| {
        site.origin.put("shop", &old, signed(&old, SigningKey::generate().unwrap().0));
        site.origin.publish("shop", 8, 1, &new);
    };
    sign_again(&site);
    let at_tag = format!("/v2/weir/shop/manifests/{}", signature_tag(&old.form().unwrap().sha256));
    let before = document(&mut site.client("h2").await, &at_tag).await;
    site.settled().await;
    site.stop_edge().await;
    site.origin.go_down().await;
    site.start_edge().await;
    let mut client = site.client("h2").await;
    assert_eq!(document(&mut client, &at_tag).await, before, "the list of an earlier process is better than none");
    site.origin.go_up().await;
    sign_again(&site);
    site.until("the list is requested again", async || document(&mut client, &at_tag).await != before).await;
}
