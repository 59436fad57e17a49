//! Artifacts in OCI registries, at a scripted registry.

use crate::prelude::*;
use crate::registry_server::{FLUX_CONFIG, FLUX_CONTENT, RegistryBehavior, RegistryServer, gzip_tar};

pub(crate) const NAME: &str = "acme/shop";

/// A repository with these keys, and services with the names and refs.
pub(crate) fn config(home: &Home, url: &str, keys: &Value, services: &[(&str, &str)]) -> Config {
    let mut config = home.config(url);
    let mut document = serde_json::to_value(&config.repositories[0]).unwrap();
    document["kind"] = "oci".into();
    let keys = keys.as_object().unwrap().clone();
    document.as_object_mut().unwrap().extend(keys);
    config.repositories[0] = serde_json::from_value(document).unwrap();
    let service = |(name, followed): &(&str, &str)| {
        let document = json!({ "name": name, "repository": REPOSITORY, "ref": followed });
        serde_json::from_value(document).unwrap()
    };
    config.services = services.iter().map(service).collect();
    config
}

fn insecure() -> Value {
    json!({ "insecure": true })
}

/// The reason for which a service does not follow its ref, once there is one.
pub(crate) async fn failure(node: &Node, service: &str) -> String {
    let mut condition = node.running.condition(&service.parse().unwrap()).unwrap();
    let is = |condition: &Condition| matches!(condition, Condition::Unhealthy { .. });
    match in_time(condition.wait_for(is)).await.unwrap().clone() {
        Condition::Unhealthy { step, reason, .. } => format!("[{step}] {reason}"),
        _ => unreachable!(),
    }
}

pub(crate) fn revision(descriptor: &Descriptor) -> String {
    descriptor.publication().revision_id.to_string()
}

#[tokio::test]
async fn an_artifact_is_followed_by_tag_range_and_digest_with_one_request_for_each() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let old = registry.push_archive(NAME, "v1.0.0", &[("map.yaml", "a: 1")]);
    let new = registry.push_archive(NAME, "1.1.0", &[("map.yaml", "a: 2"), ("sub/b.yaml", "b: 2")]);
    registry.push_archive(NAME, "2.0.0", &[("map.yaml", "a: 3")]);
    registry.push_archive(NAME, "latest", &[("map.yaml", "a: 2"), ("sub/b.yaml", "b: 2")]);
    registry.push_archive(NAME, &format!("sha256-{}.sig", "1".repeat(64)), &[("x", "x")]);
    let by_digest = old.clone();
    let services = [
        ("by-tag", "v1.0.0"),
        ("too", "v1.0.0"),
        ("by-range", "semver:^1"),
        ("by-digest", &by_digest),
        ("default", "HEAD"),
    ];
    registry.set(|it| it.page = Some(2));
    // Tags move back.
    let keys = json!({ "insecure": true, "step_back_after": "0s" });
    let config = config(&home, &registry.url(NAME), &keys, &services);
    let node = home.start(config.clone()).await;
    for (service, digest, version, files) in [
        ("by-tag", &old, Some("v1.0.0"), &["map.yaml"][..]),
        ("too", &old, Some("v1.0.0"), &["map.yaml"]),
        ("by-range", &new, Some("1.1.0"), &["map.yaml", "sub/", "sub/b.yaml"]),
        ("by-digest", &old, None, &["map.yaml"]),
        ("default", &new, Some("latest"), &["map.yaml", "sub/", "sub/b.yaml"]),
    ] {
        let published = node.published_of(service, |_| true).await;
        assert_eq!(revision(&published), format!("oci:{digest}"));
        let publication = published.publication();
        assert_eq!((publication.version.as_ref().map(|it| it.as_str()), &publication.commit), (version, &None));
        assert_eq!(names(&node.tarball(&published).await), files, "{service}");
    }
    let blobs = |requests: &[String]| requests.iter().filter(|it| it.contains("/blobs/")).count();
    assert_eq!(blobs(&registry.requests()), 2, "each layer once");

    node.poll().await;
    let path = "/v2/acme/shop";
    let unchanged = [
        format!("200 GET {path}/tags/list?n=1000"),
        format!("200 GET {path}/tags/list?from=2"),
        format!("200 GET {path}/tags/list?from=4"),
        format!("200 HEAD {path}/manifests/latest"),
        format!("200 HEAD {path}/manifests/1.1.0"),
        format!("200 HEAD {path}/manifests/v1.0.0"),
    ];
    let sorted = |mut requests: Vec<String>| {
        requests.sort();
        requests
    };
    assert_eq!(sorted(registry.requests()), sorted(unchanged.to_vec()), "a poll without a change");

    // A tag moves; the layer of another manifest is the same, so nothing is published.
    let moved = registry.push_archive(NAME, "v1.0.0", &[("map.yaml", "a: 9")]);
    let layer = registry.blob(FLUX_CONTENT, &gzip_tar(&[("map.yaml", "a: 2"), ("sub/b.yaml", "b: 2")]));
    let mut same = registry.artifact(FLUX_CONFIG, &[layer]);
    same["annotations"] = json!({ "org.opencontainers.image.created": "2026-02-02T00:00:00Z" });
    registry.push(NAME, "latest", &same);
    let before = node.published_of("default", |_| true).await;
    node.poll().await;
    node.published_of("by-tag", |now| revision(now) == format!("oci:{moved}")).await;
    assert_eq!(node.published_of("default", |_| true).await.bytes(), before.bytes());
    assert_eq!(revision(&*node.published_of("by-digest", |_| true).await), format!("oci:{old}"));
    // The next lower version is followed once the highest is deleted.
    registry.untag(NAME, "1.1.0");
    node.poll().await;
    node.published_of("by-range", |now| revision(now) == format!("oci:{moved}")).await;
    // With no version left, and no tag, what is published stays.
    registry.untag(NAME, "v1.0.0");
    node.poll().await;
    let reason = failure(&node, "by-range").await;
    let expected = "[resolve] no tag of `acme/shop` is a version in `semver:^1`: 3 tags; highest version `2.0.0`";
    assert!(reason.starts_with(expected), "{reason}");
    let reason = failure(&node, "by-tag").await;
    assert!(reason.starts_with("[resolve] the registry has no tag `v1.0.0` in `acme/shop`, or hides it"), "{reason}");
    node.published_of("by-tag", |now| revision(now) == format!("oci:{moved}")).await;
    node.stop().await;

    registry.requests();
    let node = home.start(config).await;
    node.repository(|state| state.applied_polls > 0).await;
    // The manifest of `latest` has published nothing. Nothing else is downloaded by a restart.
    assert_eq!(blobs(&registry.requests()), 1);
    node.stop().await;
}

#[tokio::test]
async fn credentials_go_to_the_registry_or_to_its_token_service_and_never_to_storage() {
    let home = Home::new();
    let (registry, storage) = (RegistryServer::start(Some(home.dir())), RegistryServer::start(Some(home.dir())));
    let password = |password: &str| ("robot".to_owned(), password.to_owned());
    registry.push_archive(NAME, "v1", &[("map.yaml", "a: 1")]);
    storage.blob(FLUX_CONTENT, &gzip_tar(&[("map.yaml", "a: 1")]));
    registry.set(|it| {
        it.token = Some(Some(password("one")));
        it.storage = Some(storage.base());
    });
    fs::write(home.file("password"), "two").unwrap();
    let keys = json!({
        "username": "robot", "password_file": home.file("password"), "ca": home.file("ca.pem"), "redirects": ["127.0.0.1"],
    });
    let config = config(&home, &registry.url(NAME), &keys, &[("shop", "v1")]);
    let node = home.start(config).await;
    let failed = node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    let reason = format!("{:?}", failed.health);
    assert!(reason.contains("does not accept the configured user name and password"), "{reason}");
    assert!(reason.contains("authenticate") && !reason.contains("two"), "{reason}");

    // The files are read for each poll.
    fs::write(home.file("password"), "one").unwrap();
    registry.requests();
    node.poll().await;
    node.published_of("shop", |_| true).await;
    let requests = registry.requests();
    let head = "HEAD /v2/acme/shop/manifests/v1";
    assert_eq!(requests[0], format!("401 {head}"), "the first request has no credentials");
    let query = "scope=repository%3Aacme%2Fshop%3Apull&service=r";
    assert_eq!(requests[1..3], [format!("200 GET /token?{query} +"), format!("200 {head} +")]);
    assert!(requests[3..].iter().all(|it| !it.starts_with("401")), "one token for all: {requests:?}");
    let fetched: Vec<_> = storage.requests();
    assert!(fetched.len() == 1 && fetched[0].ends_with("?signature=secret"), "no credentials: {fetched:?}");
    assert_eq!(node.metric("weir_origin_registry_tokens_total").await, 1.0);
    node.poll().await;
    assert_eq!(registry.requests(), [format!("200 {head} +")]);

    registry.expire_tokens();
    node.poll().await;
    let renewed = [format!("401 {head} +"), format!("200 GET /token?{query} +"), format!("200 {head} +")];
    assert_eq!(registry.requests(), renewed, "a token that is no longer accepted is replaced");

    registry.set(|it| (it.token, it.basic) = (None, Some(password("one"))));
    node.poll().await;
    assert_eq!(registry.requests(), [format!("401 {head} +"), format!("200 {head} +")]);
    node.poll().await;
    assert_eq!(registry.requests(), [format!("200 {head} +")], "the registry's own demand is remembered");
    registry.set(|it| it.basic = Some(password("three")));
    node.poll().await;
    let refused = [format!("401 {head} +"), "401 GET /v2/acme/shop/manifests/v1 +".to_owned()];
    assert_eq!(registry.requests(), refused, "it is sent once more, for the reason, and not demanded again");

    // Passwords go to no token service in the clear, nor to a private address that nobody listed.
    for (realm, reason) in [
        (
            "http://auth.example/token",
            "the registry asks for a token of `http://auth.example`, which is not followed: it",
        ),
        ("https://10.0.0.1/token", "a token of `10.0.0.1`, which is not followed: the host `10.0.0.1` has no public"),
    ] {
        registry.set(|it| (it.basic, it.token, it.realm) = (None, Some(None), Some(realm.to_owned())));
        node.poll().await;
        let failed = node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
        let shown = format!("{:?}", failed.health);
        assert!(shown.contains(reason), "{shown}");
    }
    registry.set(|it| (it.token, it.basic) = (None, Some(password("three"))));
    node.poll().await;
    let failed = node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    let reason = format!("{:?}", failed.health);
    assert!(reason.contains("the registry refuses access to `acme/shop`, or has no such repository"), "{reason}");
    node.stop().await;
}

#[tokio::test]
async fn a_repository_that_is_hidden_from_the_public_is_followed_with_credentials() {
    let home = Home::new();
    let registry = RegistryServer::start(Some(home.dir()));
    registry.push_archive(NAME, "v1", &[("map.yaml", "a: 1")]);
    let robot = Some(("robot".to_owned(), "one".to_owned()));
    fs::write(home.file("password"), "one").unwrap();
    let keys = json!({ "username": "robot", "password_file": home.file("password"), "ca": home.file("ca.pem") });
    let config = config(&home, &registry.url(NAME), &keys, &[("shop", "v1"), ("none", "v2")]);
    for behavior in [
        RegistryBehavior { hides: true, basic: robot.clone(), ..RegistryBehavior::default() },
        RegistryBehavior { hides: true, token: Some(robot.clone()), ..RegistryBehavior::default() },
    ] {
        registry.set(|it| *it = behavior);
        registry.requests();
        let node = home.start(config.clone()).await;
        node.published_of("shop", |_| true).await;
        node.repository(|state| state.applied_polls > 0).await;
        let first: Vec<_> = registry.requests();
        assert_eq!(first[..2], ["404 HEAD /v2/acme/shop/manifests/v1", "401 GET /v2/"]);
        assert_eq!(first.iter().filter(|it| it.ends_with(" /v2/")).count(), 1, "{first:?}");
        assert!(failure(&node, "none").await.contains("the registry has no tag `v2`"));
        node.poll().await;
        let requests = registry.requests();
        assert!(requests.iter().all(|it| it.ends_with(" +")), "what was accepted is remembered: {requests:?}");
        node.stop().await;
    }
    // What its root answers while it fails says nothing about credentials.
    let failing = Some(("/v2/ ", 503));
    registry.set(|it| {
        *it = RegistryBehavior { hides: true, basic: robot, refused: failing, ..RegistryBehavior::default() }
    });
    let node = home.start(config.clone()).await;
    node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    registry.set(|it| it.refused = None);
    registry.requests();
    node.poll().await;
    assert!(registry.requests().iter().any(|it| *it == "200 HEAD /v2/acme/shop/manifests/v1 +"));
    node.stop().await;
    // A registry that everybody may read is asked once.
    registry.set(|it| *it = RegistryBehavior::default());
    let node = home.start(config).await;
    assert!(failure(&node, "none").await.contains("the registry has no tag `v2`"));
    registry.requests();
    node.poll().await;
    assert!(!registry.requests().iter().any(|it| it.ends_with(" /v2/")));
    node.stop().await;
}

#[tokio::test]
async fn a_bearer_token_of_a_file_is_for_the_registry_alone() {
    let home = Home::new();
    let registry = RegistryServer::start(Some(home.dir()));
    registry.push_archive(NAME, "latest", &[("map.yaml", "a: 1")]);
    registry.set(|it| it.token = Some(None));
    registry.expire_tokens();
    fs::write(home.file("token"), "t1").unwrap();
    let keys = json!({ "token_file": home.file("token"), "ca": home.file("ca.pem") });
    let node = home.start(config(&home, &registry.url(NAME), &keys, &[("shop", "HEAD")])).await;
    node.published_of("shop", |_| true).await;
    registry.expire_tokens();
    registry.requests();
    node.poll().await;
    let failed = node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    assert!(format!("{:?}", failed.health).contains("does not accept the token in `token_file`"), "{failed:?}");
    let refused = ["401 HEAD", "401 GET"].map(|refused| format!("{refused} /v2/acme/shop/manifests/latest +"));
    assert_eq!(registry.requests(), refused, "no token service is asked");
    node.stop().await;
}

#[tokio::test]
async fn a_manifest_that_the_registry_cannot_read_stops_no_other() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    for tag in ["good", "lost"] {
        registry.push_archive(NAME, tag, &[("map.yaml", tag)]);
    }
    registry.set(|it| it.refused = Some(("/manifests/lost", 500)));
    let services = [("lost", "lost"), ("good", "good")];
    let node = home.start(config(&home, &registry.url(NAME), &insecure(), &services)).await;
    node.published_of("good", |_| true).await;
    let reason = failure(&node, "lost").await;
    assert!(reason.contains("artifact `lost`: the upstream answered 500"), "{reason}");
    node.stop().await;
}

#[tokio::test]
async fn what_is_no_artifact_is_refused_and_stops_no_other_service() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let archive = |contents: &str| registry.blob(FLUX_CONTENT, &gzip_tar(&[("map.yaml", contents)]));
    let push = |tag: &str, config: &str, layers: &[Value]| registry.push(NAME, tag, &registry.artifact(config, layers));
    push("good", FLUX_CONFIG, &[archive("a: 1")]);
    let image = "application/vnd.oci.image.config.v1+json";
    let one = push("image", image, &[archive("a: 2")]);
    push("several", FLUX_CONFIG, &[archive("a: 1"), registry.blob("text/plain", b"x")]);
    registry.push(NAME, "index", &registry.index(&[(one.clone(), "linux/amd64"), (one, "unknown/unknown")]));
    let out = registry.blob(FLUX_CONTENT, &gzip_tar(&[("a/../../x", "x")]));
    push("out", FLUX_CONFIG, &[out]);
    let stale = archive("stale");
    push("stale", FLUX_CONFIG, std::slice::from_ref(&stale));
    registry.replace_blob(&stale, Some(b"other"));
    let lost = archive("lost");
    push("lost", FLUX_CONFIG, std::slice::from_ref(&lost));
    registry.replace_blob(&lost, None);
    let mut large = archive("large");
    large["size"] = (2 << 20).into();
    push("large", FLUX_CONFIG, &[large]);
    let mut endless = registry.blob(FLUX_CONTENT, &vec![0; 2 << 20]);
    endless["size"] = 5.into();
    push("endless", FLUX_CONFIG, &[endless]);
    let schema1 = "application/vnd.docker.distribution.manifest.v1+json";
    registry.push(NAME, "schema1", &json!({ "mediaType": schema1, "fsLayers": [] }));
    push("text", FLUX_CONFIG, &[registry.blob("text/plain", b"no archive")]);
    let services = ["good", "image", "several", "index", "out", "stale", "lost", "large", "endless", "schema1", "text"];
    let services: Vec<_> = services.iter().map(|name| (*name, *name)).collect();
    let mut config = config(&home, &registry.url(NAME), &insecure(), &services);
    config.upstreams.max_artifact = bytesize::ByteSize::mib(1);
    registry.set(|it| it.encoding = Some("gzip"));
    let node = home.start(config).await;
    node.published_of("good", |_| true).await;
    for (service, reason) in [
        (
            "image",
            "[select] artifact `image` is a container image (application/vnd.cncf.flux.content.v1.tar+gzip): set",
        ),
        ("several", "has 2 layers (application/vnd.cncf.flux.content.v1.tar+gzip, text/plain): set `layer.media_type`"),
        ("index", "[select] artifact `index` is an index of 2 manifests (linux/amd64): set `platform`"),
        ("out", "[fetch] artifact `out` has the member `a/../../x`, which leads out of it"),
        ("stale", "[fetch] artifact `stale` has a layer with the SHA-256 digest `"),
        ("lost", "[fetch] artifact `lost` has a manifest, but its layer is not there: it answered 404"),
        ("large", "[select] artifact `large` has more than `[upstreams] max_artifact` = 1048576 bytes"),
        ("endless", "[fetch] artifact `endless` has a layer of more than the 5 bytes that its manifest says: publish"),
        ("schema1", "[select] artifact `schema1` has a manifest that cannot be used: it is `application/vnd.docker"),
        ("text", "[fetch] artifact `text` "),
    ] {
        let shown = failure(&node, service).await;
        assert!(shown.contains(reason), "{shown} / {reason}");
    }
    for service in ["stale", "text"] {
        let shown = failure(&node, service).await;
        assert!(shown.contains("; the server, or a proxy before it, sent `Content-Encoding: gzip`"), "{shown}");
    }
    let state = node.repository(|state| state.applied_polls > 0).await;
    assert!(matches!(state.health, Health::Healthy { .. }), "{state:?}");
    node.stop().await;
}

#[tokio::test]
async fn a_platform_and_a_layer_are_chosen_and_a_file_is_copied() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let image = |contents: &str| {
        let mut policy = registry.blob("application/json", contents.as_bytes());
        policy["annotations"] = json!({ "org.opencontainers.image.title": "opa/policy.json" });
        let layers = [registry.blob("application/vnd.provenance", b"x"), policy];
        let pushed = registry.artifact("application/vnd.oci.image.config.v1+json", &layers);
        registry.push(NAME, &format!("only-{}", contents.len()), &pushed)
    };
    let (amd64, arm64, attestation) = (image("{}"), image("{ }"), image("{  }"));
    let manifests = [(attestation, "unknown/unknown"), (arm64.clone(), "linux/arm64"), (amd64, "linux/amd64")];
    registry.push(NAME, "v1", &registry.index(&manifests));
    // No request for a digest is answered without a body.
    registry.set(|it| it.has_no_head = true);
    let layer = json!({ "media_type": "application/json", "operation": "copy" });
    let keys = json!({ "insecure": true, "platform": "linux/arm64", "layer": layer });
    let config = config(&home, &registry.url(NAME), &keys, &[("shop", "v1")]);
    let node = home.start(config).await;
    let published = node.published_of("shop", |_| true).await;
    assert_eq!(revision(&published), format!("oci:{}", arm64["digest"].as_str().unwrap()));
    let tarball = node.tarball(&published).await;
    assert_eq!(names(&tarball), ["opa/", "opa/policy.json"]);
    assert!(tarball.windows(3).any(|bytes| bytes == b"{ }"));
    registry.requests();
    node.poll().await;
    let unchanged = ["405 HEAD /v2/acme/shop/manifests/v1", "200 GET /v2/acme/shop/manifests/v1"];
    assert_eq!(registry.requests(), unchanged);

    // A registry that demands a pause gets one, and edges have what was published.
    registry.set(|it| it.status = Some(429));
    node.poll().await;
    let failed = node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    assert!(format!("{:?}", failed.health).contains("answered 429"), "{failed:?}");
    assert_eq!(registry.requests().len(), 1);
    assert_eq!(names(&node.tarball(&published).await), ["opa/", "opa/policy.json"]);
    node.stop().await;
}

#[tokio::test]
async fn a_pause_that_the_storage_demands_holds_only_what_was_requested_there() {
    let (home, registry, storage) = (Home::new(), RegistryServer::start(None), RegistryServer::start(None));
    registry.push_archive(NAME, "1.0.0", &[("map.yaml", "a: 1")]);
    registry.set(|it| it.storage = Some(storage.base()));
    storage.set(|it| it.status = Some(503));
    let keys = json!({ "insecure": true, "redirects": ["127.0.0.1"] });
    let node = home.start(config(&home, &registry.url(NAME), &keys, &[("shop", "semver:^1")])).await;
    let shown = failure(&node, "shop").await;
    let expected = "[fetch] artifact `1.0.0` cannot be fetched: the host `127.0.0.1` answered 503";
    assert!(shown.starts_with(expected) && !shown.contains("secret"), "{shown}");
    let state = node.repository(|state| state.applied_polls > 0).await;
    assert!(matches!(state.health, Health::Healthy { .. }), "{state:?}");
    registry.set(|it| it.storage = None);
    let next = registry.push_archive(NAME, "1.1.0", &[("map.yaml", "a: 2")]);
    node.poll().await;
    node.published_of("shop", |now| revision(now) == format!("oci:{next}")).await;
    node.stop().await;
}

#[tokio::test]
async fn a_pause_that_the_registry_demands_after_a_success_holds_the_next_poll() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    registry.push_archive(NAME, "a", &[("map.yaml", "a")]);
    let layer = registry.blob(FLUX_CONTENT, &gzip_tar(&[("map.yaml", "b")]));
    registry.push(NAME, "b", &registry.artifact(FLUX_CONFIG, std::slice::from_ref(&layer)));
    let digest: &'static str = layer["digest"].as_str().unwrap().to_owned().leak();
    registry.set(|it| it.pauses = Some(digest));
    let node = home.start(config(&home, &registry.url(NAME), &insecure(), &[("a", "a"), ("b", "b")])).await;
    node.published_of("a", |_| true).await;
    registry.requests();
    node.poll().await;
    let failed = node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    assert!(format!("{:?}", failed.health).contains("answered 429"), "{failed:?}");
    assert_eq!(registry.requests(), [""; 0]);
    node.stop().await;
}

#[tokio::test]
async fn an_artifact_that_takes_too_long_keeps_no_other_from_being_fetched() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let layer = registry.blob(FLUX_CONTENT, &gzip_tar(&[("map.yaml", "slow")]));
    registry.push(NAME, "a-slow", &registry.artifact(FLUX_CONFIG, std::slice::from_ref(&layer)));
    registry.push_archive(NAME, "good", &[("map.yaml", "good")]);
    let digest: &'static str = layer["digest"].as_str().unwrap().to_owned().leak();
    registry.set(|it| it.stalls = Some(digest));
    let mut config = config(&home, &registry.url(NAME), &insecure(), &[("a-slow", "a-slow"), ("good", "good")]);
    config.repositories[0].poll_timeout = Duration::from_secs(2);
    let node = home.start(config).await;
    // The watchdog interrupts the first poll.
    let failed = node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    assert!(format!("{failed:?}").contains("took longer than 2 s"), "{failed:?}");
    node.poll().await;
    node.published_of("good", |_| true).await;
    let shown = failure(&node, "a-slow").await;
    assert!(shown.starts_with("[fetch] artifact `a-slow` cannot be fetched: the poll was interrupted"), "{shown}");
    node.stop().await;
}

#[tokio::test]
async fn operators_follow_an_artifact() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    let digest = registry.push_archive(NAME, "v1", &[("map.yaml", "a: 1")]);
    let (node, operator) = operated(&home).await;
    let repository = json!({
        "kind": "oci", "url": registry.url(NAME), "insecure": true, "poll_interval": "1h", "min_poll_interval": "0s",
    });
    let with = |key: &str, value: Value| {
        let mut document = repository.clone();
        document[key] = value;
        document
    };
    for (key, value, reason) in [
        ("url", registry.url("acme/shop:v1").into(), "it contains a tag or a digest: put it into `ref` of the service"),
        ("ssh_key", "key".into(), "it has no meaning for `kind = "),
        ("username", "robot".into(), "remove `insecure`, or this"),
        ("platform", "linux".into(), "is not a platform: write it like `linux/amd64`"),
        ("layer", json!({ "operation": "unpack" }), "`unpack`"),
    ] {
        let reply = operator.put("/v1/repositories/manifests", with(key, value)).await;
        assert!(reply.status == 400 && reply.body.to_string().contains(reason), "{key}: {reply:?}");
    }
    assert_eq!(operator.put("/v1/repositories/manifests", repository.clone()).await.status, 201);
    let service = |followed: &str| json!({ "repository": "manifests", "ref": followed });
    let reply = operator.put("/v1/services/shop-prod", service("refs/heads/main")).await;
    assert!(reply.status == 400 && reply.body.to_string().contains("neither a tag of a registry"), "{reply:?}");
    assert_eq!(operator.put("/v1/services/shop-prod", service(&digest)).await.status, 201);
    let published = node.published(|_| true).await;
    assert_eq!(revision(&published), format!("oci:{digest}"));
    let reply = operator.send(Method::POST, "/v1/services/shop-prod/dry-run", &[], None).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.body["revision_id"]),
        (200, &json!(format!("oci:{digest}"))),
        "{reply:?}"
    );
    assert_eq!(reply.body["entries"][0]["path"], "map.yaml");
    let reply = operator.put("/v1/repositories/manifests", json!({ "url": "https://git.example/x" })).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (409, "kind-changed"));

    // Another layer of the same manifest is another tarball of the same revision.
    let copy = with("layer", json!({ "operation": "copy" }));
    assert_eq!(operator.put("/v1/repositories/manifests", copy).await.status, 200);
    let reason = failure(&node, "shop-prod").await;
    assert!(reason.contains("[select]") && reason.contains("without the annotation"), "{reason}");
    node.stop().await;
}
