//! Artifacts with signatures of cosign, in all places where it puts them. `source/signatures/cosign.rs` has some by cosign.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use weir_protocol::attached::{Attached, PUBLICATION_ARTIFACT_TYPE};
use weir_protocol::envelope::pre_authentication_encoding;

use crate::artifacts::{NAME, config, failure, revision};
use crate::prelude::*;
use crate::registry_server::{FLUX_CONFIG, FLUX_CONTENT, RegistryServer, gzip_tar};
use crate::signing::new_key;

const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// A key as `cosign generate-key-pair` makes them.
struct Signer(EcdsaKeyPair);

impl Signer {
    fn new() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_ASN1_SIGNING, SystemRandom::new());
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap())
    }

    /// The public key in PEM. All of P-256 begin with the same bytes.
    fn write(&self, file: &Path) {
        let prefix = STANDARD.decode("MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgA=").unwrap();
        let encoded = STANDARD.encode([&prefix, self.0.public_key().as_ref()].concat());
        fs::write(file, format!("-----BEGIN PUBLIC KEY-----\n{encoded}\n-----END PUBLIC KEY-----\n")).unwrap();
    }

    fn sign(&self, message: &[u8]) -> String {
        STANDARD.encode(self.0.sign(&SystemRandom::new(), message).unwrap())
    }

    /// As `cosign sign --new-bundle-format=false` does.
    fn push_payload(&self, registry: &RegistryServer, digest: &str, annotations: &Value) {
        push_payloads(registry, digest, &[self.payload(registry, digest, annotations)]);
    }

    /// A layer with a signature.
    fn payload(&self, registry: &RegistryServer, digest: &str, annotations: &Value) -> Value {
        let image = json!({ "docker-manifest-digest": digest });
        let critical = json!({ "identity": {}, "image": image, "type": "cosign container image signature" });
        let payload = json!({ "critical": critical, "optional": null }).to_string();
        let mut layer = registry.blob("application/vnd.dev.cosign.simplesigning.v1+json", payload.as_bytes());
        layer["annotations"] = annotations.clone();
        layer["annotations"]["dev.cosignproject.cosign/signature"] = self.sign(payload.as_bytes()).into();
        layer
    }

    /// A referrer of `cosign sign --registry-referrers-mode=oci-1-1`, of cosign 2. Returns its descriptor in an index.
    fn push_referrer(&self, registry: &RegistryServer, digest: &str) -> Value {
        let layer = self.payload(registry, digest, &json!({}));
        let kind = "application/vnd.dev.cosign.artifact.sig.v1+json";
        let mut manifest = registry.artifact(kind, &[layer]);
        manifest["subject"] = json!({ "digest": digest });
        let mut pushed = registry.push(NAME, "pushed-by-digest", &manifest);
        pushed["artifactType"] = kind.into();
        pushed
    }

    /// A referrer as `cosign sign` pushes it. Returns its descriptor.
    fn push_bundle(&self, registry: &RegistryServer, digest: &str, predicate: &str) -> Value {
        registry.push(NAME, "pushed-by-digest", &self.bundle(registry, digest, predicate))
    }

    /// The manifest of a referrer.
    fn bundle(&self, registry: &RegistryServer, digest: &str, predicate: &str) -> Value {
        let subject = json!({ "digest": { "sha256": digest.trim_start_matches("sha256:") } });
        let statement = json!({ "_type": "https://in-toto.io/Statement/v1", "subject": [subject], "predicateType": predicate, "predicate": {} }).to_string();
        let payload_type = "application/vnd.in-toto+json";
        let sig = self.sign(&pre_authentication_encoding(payload_type, statement.as_bytes()));
        let envelope = json!({ "payload": STANDARD.encode(statement), "payloadType": payload_type, "signatures": [{ "sig": sig }] });
        let bundle = json!({ "mediaType": BUNDLE, "verificationMaterial": { "publicKey": { "hint": "x" } }, "dsseEnvelope": envelope });
        let mut manifest = registry.artifact(EMPTY, &[registry.blob(BUNDLE, bundle.to_string().as_bytes())]);
        (manifest["artifactType"], manifest["subject"]) = (BUNDLE.into(), json!({ "digest": digest }));
        manifest
    }
}

const SIGN: &str = "https://sigstore.dev/cosign/sign/v1";

/// Puts signatures at their tag.
fn push_payloads(registry: &RegistryServer, digest: &str, layers: &[Value]) {
    let tag = format!("{}.sig", digest.replace(':', "-"));
    registry.push(NAME, &tag, &registry.artifact("application/vnd.oci.image.config.v1+json", layers));
}

/// Puts referrers where registries without the API have them: the index has the type of their configuration.
fn refer_by_tag(registry: &RegistryServer, digest: &str, referrers: &[Value]) {
    let mut index = registry.index(&[]);
    index["manifests"] = referrers.into();
    index["manifests"].as_array_mut().unwrap().iter_mut().for_each(|it| it["artifactType"] = EMPTY.into());
    registry.push(NAME, &digest.replace(':', "-"), &index);
}

fn policy(keys: &[&Path]) -> Value {
    json!({ "insecure": true, "platform": "linux/amd64", "verify": { "cosign_keys": keys } })
}

#[tokio::test]
async fn only_artifacts_that_a_listed_key_signed_are_published() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let (alice, other, mallory) = (Signer::new(), Signer::new(), Signer::new());
    let keys = [home.file("alice.pub"), home.file("other.pub")];
    alice.write(&keys[0]);
    other.write(&keys[1]);
    let push = |tag: &str| registry.push_archive(NAME, tag, &[("map.yaml", tag)]);

    alice.push_payload(&registry, &push("payload"), &json!({}));
    let bundle = push("bundle");
    let referrers = [
        Signer::new().push_bundle(&registry, &bundle, SIGN),
        alice.push_bundle(&registry, &bundle, "https://spdx.dev/Document"),
        other.push_bundle(&registry, &bundle, SIGN),
    ];
    refer_by_tag(&registry, &bundle, &referrers);
    let by_api = push("by-api");
    let mut index = registry.index(&[]);
    index["manifests"] = json!([{ "mediaType": "x", "digest": "sha512:ab", "size": 1, "artifactType": "application/spdx+json" }, alice.push_bundle(&registry, &by_api, SIGN)]);
    registry.push(NAME, &format!("referrers/{by_api}"), &index);
    let by_mode = push("by-mode");
    let mut index = registry.index(&[]);
    index["manifests"] = json!([alice.push_referrer(&registry, &by_mode)]);
    registry.push(NAME, &format!("referrers/{by_mode}"), &index);
    // With a platform, the index is signed.
    let image = registry.push(
        NAME,
        "pushed-by-digest",
        &registry.artifact(FLUX_CONFIG, &[registry.blob(FLUX_CONTENT, &gzip_tar(&[("map.yaml", "image")]))]),
    );
    let signed_index = registry.push(NAME, "platform", &registry.index(&[(image, "linux/amd64")]));
    alice.push_payload(&registry, signed_index["digest"].as_str().unwrap(), &json!({}));

    push("unsigned");
    mallory.push_payload(&registry, &push("foreign"), &json!({}));
    mallory.push_payload(&registry, &push("keyless"), &json!({ "dev.sigstore.cosign/certificate": "x" }));
    let (attested, copied) = (push("attested"), push("copied"));
    refer_by_tag(&registry, &attested, &[alice.push_bundle(&registry, &attested, "https://spdx.dev/Document")]);
    // The signature of another artifact.
    refer_by_tag(&registry, &copied, &[alice.push_bundle(&registry, &by_api, SIGN)]);
    let lost = push("lost");
    refer_by_tag(
        &registry,
        &lost,
        &[json!({ "mediaType": "x", "digest": format!("sha256:{}", "ab".repeat(32)), "size": 1 })],
    );

    let good = ["payload", "bundle", "by-api", "by-mode", "platform"];
    let bad = ["unsigned", "foreign", "keyless", "attested", "copied", "lost"];
    let services: Vec<_> = good.iter().chain(&bad).map(|tag| (*tag, *tag)).collect();
    let keys = [keys[0].as_path(), keys[1].as_path()];
    let node = home.start(config(&home, &registry.url(NAME), &policy(&keys), &services)).await;
    for service in good {
        node.published_of(service, |_| true).await;
    }
    for (service, seen) in [
        ("unsigned", ""),
        ("foreign", " (1 signature of other keys or algorithms)"),
        ("keyless", " (1 signature without a key (keyless signatures are not supported yet: use a key))"),
        ("attested", " (1 signature of something else)"),
        ("copied", " (1 signature of something else)"),
        ("lost", ""),
    ] {
        let shown = failure(&node, service).await;
        let start = format!("[verify] artifact `{service}`: no signature of `sha256:");
        assert!(shown.starts_with(&start) && shown.ends_with(&format!("` by a key of `cosign_keys`{seen}")), "{shown}");
    }
    let layers = |requests: &[String]| {
        let layer = |service: &str| {
            format!(
                "/v2/{NAME}/blobs/sha256:{}",
                weir_protocol::digest::Sha256::of(&gzip_tar(&[("map.yaml", service)]))
            )
        };
        bad.iter().filter(|service| requests.iter().any(|it| it.contains(&layer(service)))).count()
    };
    assert_eq!(layers(&registry.requests()), 0, "what is not signed is not downloaded");
    node.poll().await;
    let requests = registry.requests();
    assert!(!requests.iter().any(|it| it.contains("/blobs/")), "once for each policy and digest: {requests:?}");

    // Another key counts with the next poll.
    mallory.write(keys[1]);
    node.poll().await;
    node.published_of("foreign", |_| true).await;
    until(async || failure(&node, "bundle").await.contains("and stays published")).await;
    fs::write(keys[1], "no key").unwrap();
    node.poll().await;
    let expected = "the file `other.pub` that `cosign_keys` names is not a public key in PEM";
    until(async || failure(&node, "payload").await.contains(expected)).await;
    node.stop().await;
}

#[tokio::test]
async fn a_new_policy_keeps_published_artifacts_and_more_signatures_than_the_bound_are_not_requested() {
    let (home, registry, alice) = (Home::new(), RegistryServer::start(None), Signer::new());
    let key = home.file("alice.pub");
    alice.write(&key);
    let digest = registry.push_archive(NAME, "stable", &[("map.yaml", "a: 1")]);
    let services = [("shop", "stable")];
    let node = home.start(config(&home, &registry.url(NAME), &json!({ "insecure": true }), &services)).await;
    let first = node.published_of("shop", |_| true).await;
    node.stop().await;

    // Of others a hundred requests are made in each place, and no other one.
    let mut referrers: Vec<_> = (0..50).map(|_| Signer::new().push_bundle(&registry, &digest, SIGN)).collect();
    referrers.push(alice.push_bundle(&registry, &digest, SIGN));
    refer_by_tag(&registry, &digest, &referrers);
    Signer::new().push_payload(&registry, &digest, &json!({}));
    registry.requests();
    let node = home.start(config(&home, &registry.url(NAME), &policy(&[&key]), &services)).await;
    until(async || failure(&node, "shop").await.contains("(51 signatures of other keys or algorithms)")).await;
    let reason = failure(&node, "shop").await;
    assert!(reason.ends_with("(it was published before, and stays published)"), "{reason}");
    assert_eq!(node.published_of("shop", |_| true).await.bytes(), first.bytes());
    let requests = registry.requests();
    assert_eq!(requests.iter().filter(|it| it.contains("/blobs/")).count(), 51, "{requests:?}");

    let signed = registry.push_archive(NAME, "stable", &[("map.yaml", "a: 2")]);
    // Fifty other bundles do not hide the signature at the tag.
    let others: Vec<_> = (0..50).map(|_| Signer::new().push_bundle(&registry, &signed, SIGN)).collect();
    refer_by_tag(&registry, &signed, &others);
    alice.push_payload(&registry, &signed, &json!({}));
    node.poll().await;
    node.published_of("shop", |now| revision(now) == format!("oci:{signed}")).await;
    node.stop().await;
}

#[tokio::test]
async fn attestations_and_signatures_of_others_hide_no_valid_one() {
    let (home, registry, alice) = (Home::new(), RegistryServer::start(None), Signer::new());
    let key = home.file("alice.pub");
    alice.write(&key);
    let [attested, signed] = ["attested", "signed"].map(|tag| registry.push_archive(NAME, tag, &[("map.yaml", tag)]));
    let mut referrers: Vec<_> =
        (0..20).map(|number| alice.push_bundle(&registry, &attested, &format!("https://spdx.dev/{number}"))).collect();
    referrers.push(alice.push_bundle(&registry, &attested, SIGN));
    refer_by_tag(&registry, &attested, &referrers);
    let mut layers: Vec<_> = (0..20).map(|_| Signer::new().payload(&registry, &signed, &json!({}))).collect();
    layers.push(alice.payload(&registry, &signed, &json!({})));
    push_payloads(&registry, &signed, &layers);
    let services = [("attested", "attested"), ("signed", "signed")];
    let node = home.start(config(&home, &registry.url(NAME), &policy(&[&key]), &services)).await;
    for (service, _) in services {
        node.published_of(service, |_| true).await;
    }
    node.stop().await;
}

#[tokio::test]
async fn a_registry_that_refuses_to_list_referrers_hides_no_signature() {
    for status in [303, 400, 403, 406] {
        let (home, registry, alice) = (Home::new(), RegistryServer::start(None), Signer::new());
        let key = home.file("alice.pub");
        alice.write(&key);
        let [by_tag, listed] = ["by-tag", "listed"].map(|tag| registry.push_archive(NAME, tag, &[("map.yaml", tag)]));
        alice.push_payload(&registry, &by_tag, &json!({}));
        refer_by_tag(&registry, &listed, &[alice.push_bundle(&registry, &listed, SIGN)]);
        registry.set(|behavior| behavior.refused = Some(("/referrers/", status)));
        let services = [("by-tag", "by-tag"), ("listed", "listed")];
        let node = home.start(config(&home, &registry.url(NAME), &policy(&[&key]), &services)).await;
        node.published_of("by-tag", |_| true).await;
        // 403 is no word on whether there is a list.
        if status == 403 {
            let shown = failure(&node, "listed").await;
            assert!(shown.contains("refuses access"), "{shown}");
        } else {
            node.published_of("listed", |_| true).await;
        }
        node.stop().await;
    }
}

#[tokio::test]
async fn a_chart_in_a_registry_may_be_signed_likewise() {
    let (home, registry, alice) = (Home::new(), RegistryServer::start(None), Signer::new());
    let key = home.file("alice.pub");
    alice.write(&key);
    let push = |version: &str| {
        let archive = gzip_tar(&[("shop/values.yaml", version)]);
        let layer = registry.blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", &archive);
        let chart = registry.artifact("application/vnd.cncf.helm.config.v1+json", &[layer]);
        registry.push(NAME, version, &chart)["digest"].as_str().unwrap().to_owned()
    };
    alice.push_payload(&registry, &push("1.0.0"), &json!({}));
    let keys = json!({ "insecure": true, "kind": "helm", "verify": { "cosign_keys": [key] } });
    let mut config = config(&home, registry.url(NAME).trim_end_matches("/shop"), &keys, &[("shop", "semver:^1")]);
    config.services[0].chart = Some("shop".parse().unwrap());
    let node = home.start(config).await;
    let first = node.published_of("shop", |_| true).await;
    assert!(revision(&first).starts_with("helm:1.0.0+sha256:"));
    push("1.1.0");
    node.poll().await;
    let reason = failure(&node, "shop").await;
    assert!(reason.starts_with("[verify] chart `shop` 1.1.0: no signature of `sha256:"), "{reason}");
    assert_eq!(node.published_of("shop", |_| true).await.bytes(), first.bytes());
    node.stop().await;
}

#[tokio::test]
async fn what_listed_keys_signed_is_published_with_the_manifest_and_signed_by_the_origin() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let (alice, mallory, key) = (Signer::new(), Signer::new(), home.file("alice.pub"));
    alice.write(&key);
    let [at_tag, bundled, indexed] =
        ["at-tag", "bundled", "indexed"].map(|tag| registry.push_archive(NAME, tag, &[("map.yaml", tag)]));
    alice.push_payload(&registry, &at_tag, &json!({}));
    let attestation = "https://spdx.dev/Document";
    let bundle = alice.push_bundle(&registry, &at_tag, attestation);
    refer_by_tag(&registry, &at_tag, std::slice::from_ref(&bundle));
    let mut attested = alice.bundle(&registry, &bundled, attestation);
    attested["annotations"] = json!({ "dev.sigstore.bundle.predicateType": attestation });
    let referrers = [
        mallory.push_bundle(&registry, &bundled, SIGN),
        registry.push(NAME, "pushed-by-digest", &attested),
        alice.push_bundle(&registry, &bundled, SIGN),
    ];
    refer_by_tag(&registry, &bundled, &referrers);
    // Nobody asks an edge for the index.
    let manifest = json!({ "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": indexed, "size": 1 });
    let index = registry.push(NAME, "indexed", &registry.index(&[(manifest, "linux/amd64")]));
    alice.push_payload(&registry, index["digest"].as_str().unwrap(), &json!({}));
    let services = ["at-tag", "bundled", "indexed"].map(|tag| (tag, tag));
    let mut config = config(&home, &registry.url(NAME), &policy(&[&key]), &services);
    config.oci.enabled = true;
    config.signing.keys = vec![new_key(&home, "weir.key").0];
    let node = home.start(config.clone()).await;
    let attached = async |node: &Node, service: &str| {
        let published = node.published_of(service, |_| true).await;
        published.attached().into_iter().map(|it| (format!("sha256:{}", it.sha256), it)).collect::<Vec<_>>()
    };
    let digest = |pushed: &Value| pushed["digest"].as_str().unwrap().to_owned();
    let digests =
        |attached: &[(String, Attached)]| attached.iter().map(|(digest, _)| digest.clone()).collect::<Vec<_>>();
    let of_tag = attached(&node, "at-tag").await;
    let tags: Vec<_> = of_tag.iter().map(|(_, it)| it.tag.clone()).collect();
    assert_eq!(tags, [Some(at_tag.replace(':', "-") + ".sig"), None, None], "the last is the publication");
    assert_eq!(of_tag[1].0, digest(&bundle));
    let published = of_tag.last().unwrap().1.clone();
    assert_eq!(published.artifact_type, PUBLICATION_ARTIFACT_TYPE);
    let of_bundled = digests(&attached(&node, "bundled").await);
    assert_eq!(of_bundled[..of_bundled.len() - 1], [digest(&referrers[2]), digest(&referrers[1])]);
    assert_eq!(attached(&node, "indexed").await.len(), 1);
    node.stop().await;

    config.signing.cosign = true;
    let node = home.start(config).await;
    let kinds = async |service: &str| {
        let kind = |(_, it): (String, Attached)| {
            if it.tag.is_some() {
                "tag"
            } else if it.artifact_type == PUBLICATION_ARTIFACT_TYPE {
                "publication"
            } else {
                "bundle"
            }
        };
        attached(&node, service).await.into_iter().map(kind).collect::<Vec<_>>()
    };
    // The upstream's bundle hides the tag from cosign 3, so the origin has one, too.
    assert_eq!(kinds("at-tag").await, ["tag", "bundle", "tag", "bundle", "publication"]);
    assert_eq!(kinds("bundled").await, ["tag", "bundle", "bundle", "bundle", "publication"]);
    assert_eq!(kinds("indexed").await, ["publication"], "nothing was verified of its manifest");
    node.stop().await;
}

#[tokio::test]
async fn nothing_unsigned_is_published_beside_a_signature_and_junk_hides_none() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let (alice, mallory, key) = (Signer::new(), Signer::new(), home.file("alice.pub"));
    alice.write(&key);
    let [digest, other] = ["stable", "other"].map(|tag| registry.push_archive(NAME, tag, &[("map.yaml", tag)]));
    let [unsigned, signature] =
        [registry.blob("text/plain", b"unsigned"), alice.payload(&registry, &digest, &json!({}))];
    let foreign = mallory.payload(&registry, &digest, &json!({}));
    push_payloads(&registry, &digest, &[unsigned.clone(), foreign, signature.clone()]);
    let mut beside = alice.bundle(&registry, &digest, SIGN);
    beside["layers"].as_array_mut().unwrap().push(unsigned);
    let mut elsewhere = alice.bundle(&registry, &digest, SIGN);
    elsewhere["subject"]["digest"] = other.into();
    let bundle = alice.push_bundle(&registry, &digest, SIGN);
    let mut referrers = [beside, elsewhere].map(|it| registry.push(NAME, "pushed-by-digest", &it)).to_vec();
    referrers.extend([bundle.clone(), bundle.clone()]);
    // More than are looked at.
    referrers.extend((0..60).map(|_| mallory.push_bundle(&registry, &digest, SIGN)));
    refer_by_tag(&registry, &digest, &referrers);
    let mut config = config(&home, &registry.url(NAME), &policy(&[&key]), &[("shop", "stable")]);
    config.oci.enabled = true;
    let node = home.start(config).await;
    let attached = node.published_of("shop", |_| true).await.attached();
    let [at_tag, referrer] = &attached[..] else { panic!("{attached:?}") };
    assert_eq!(at_tag.tag, Some(digest.replace(':', "-") + ".sig"));
    assert_eq!(serde_json::from_slice::<Value>(&at_tag.manifest).unwrap()["layers"], json!([signature]));
    assert_eq!(format!("sha256:{}", referrer.sha256), bundle["digest"].as_str().unwrap());
    let unsigned = weir_protocol::digest::Sha256::of(b"unsigned");
    assert!(attached.iter().all(|it| it.blob(&unsigned).is_none()));
    node.stop().await;
}

#[tokio::test]
async fn attestations_that_cannot_be_fetched_are_requested_again_and_then_missing() {
    let (home, registry, alice) = (Home::new(), RegistryServer::start(None), Signer::new());
    let key = home.file("alice.pub");
    alice.write(&key);
    let digest = registry.push_archive(NAME, "stable", &[("map.yaml", "a: 1")]);
    alice.push_payload(&registry, &digest, &json!({}));
    registry.set(|behavior| behavior.pauses = Some(".att"));
    let mut policy = policy(&[&key]);
    (policy["poll_interval"], policy["min_poll_interval"]) = ("1s".into(), "0s".into());
    let mut config = config(&home, &registry.url(NAME), &policy, &[("shop", "stable")]);
    config.oci.enabled = true;
    let node = home.start(config).await;
    let reason = failure(&node, "shop").await;
    let expected =
        "artifact `stable` is not complete: what is attached to the manifest of artifact `stable` cannot be fetched";
    assert!(reason.contains(expected), "{reason}");
    let attached = node.published_of("shop", |_| true).await.attached();
    assert_eq!(attached.into_iter().map(|it| it.tag).collect::<Vec<_>>(), [Some(digest.replace(':', "-") + ".sig")]);
    let requests = registry.requests();
    assert_eq!(requests.iter().filter(|it| it.contains(".att")).count(), 3, "{requests:?}");
    node.stop().await;
}
