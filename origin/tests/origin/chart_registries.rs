//! Charts in registries: each chart a repository, each version a tag.

use crate::helm_repository::{Charts, failure, is_version};
use crate::prelude::*;
use crate::registry_server::{RegistryServer, gzip_tar};

const CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const ARCHIVE: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
const PROVENANCE: &str = "application/vnd.cncf.helm.chart.provenance.v1.prov";
const IMAGE: &str = "application/vnd.oci.image.config.v1+json";

/// Pushes a chart as helm does, with its signature. Returns the digests of its manifest and of its archive.
pub(crate) fn push(server: &RegistryServer, name: &str, tag: &str, setting: &str) -> (String, String) {
    let archive = gzip_tar(&[("shop/Chart.yaml", "name: shop"), ("shop/values.yaml", setting)]);
    let layers = [server.blob(PROVENANCE, b"signed"), server.blob(ARCHIVE, &archive)];
    let pushed = server.push(name, tag, &server.artifact(CONFIG, &layers));
    let digest = |descriptor: &Value| descriptor["digest"].as_str().unwrap().to_owned();
    (digest(&pushed), digest(&layers[1]))
}

/// Services with the names of charts, of a registry.
pub(crate) fn config(home: &Home, url: &str, charts: &[&str]) -> Config {
    let mut config = home.config(url);
    config.repositories[0].kind = serde_json::from_value(json!("helm")).unwrap();
    let service = |chart: &&str| {
        let document = json!({ "name": chart, "repository": REPOSITORY, "chart": chart, "ref": "semver:^1" });
        serde_json::from_value(document).unwrap()
    };
    config.services = charts.iter().map(service).collect();
    config
}

#[tokio::test]
async fn a_chart_in_a_registry_is_followed_by_its_tags() {
    let (home, server) = (Home::new(), RegistryServer::start(None));
    push(&server, "charts/shop", "1.0.0_up1.2", "a: 1");
    let (_, archive) = push(&server, "charts/shop", "1.0.0_up1.10", "a: 2");
    server.push("charts/shop", "v1.0.0", &server.artifact(IMAGE, &[server.blob("layer", b"x")]));
    push(&server, "charts/shop", "2.0.0", "a: 3");
    server.push("charts/image", "1.0.0", &server.artifact(IMAGE, &[server.blob("layer", b"x")]));
    server.set(|behavior| behavior.page = Some(1));
    let mut config = config(&home, &server.url("charts"), &["shop", "image", "none"]);
    config.repositories[0].insecure = true;
    let node = home.start(config.clone()).await;
    let published = node.published_of("shop", |_| true).await;
    let publication = published.publication();
    assert_eq!(publication.revision_id.as_str(), format!("helm:1.0.0+up1.10+{archive}"));
    assert!(is_version("1.0.0+up1.10")(&published) && publication.commit.is_none());
    assert_eq!(names(&node.tarball(&published).await), ["Chart.yaml", "values.yaml"]);
    for (service, reason) in [
        (
            "image",
            "[select] chart `image` 1.0.0 is not a chart: the media type of its configuration is `application/vnd.oci",
        ),
        ("none", "[resolve] no version of chart `none` in `semver:^1`: 0 tags"),
    ] {
        let shown = failure(&node, service).await;
        assert!(shown.starts_with(reason), "{shown}");
    }
    // A poll without a change: of each chart the pages of tags, and one HEAD.
    server.set(|behavior| behavior.page = None);
    server.requests();
    node.poll().await;
    let tags = |name: &str| format!("200 GET /v2/charts/{name}/tags/list?n=1000");
    let head = |name: &str, tag: &str| format!("200 HEAD /v2/charts/{name}/manifests/{tag}");
    let expected = [tags("image"), head("image", "1.0.0"), tags("none"), tags("shop"), head("shop", "1.0.0_up1.10")];
    assert_eq!(server.requests(), expected);

    // Pushed again with another manifest and the same archive, it is the same revision.
    let layer = json!({ "mediaType": ARCHIVE, "digest": archive, "size": 1 });
    server.push("charts/shop", "1.0.0_up1.10", &server.artifact(CONFIG, &[layer]));
    node.poll().await;
    assert_eq!(node.published_of("shop", |_| true).await.version(), published.version());
    assert!(!server.requests().iter().any(|request| request.contains("/blobs/")));
    push(&server, "charts/shop", "1.1.0", "a: 4");
    node.poll().await;
    node.published_of("shop", is_version("1.1.0")).await;
    node.stop().await;

    server.requests();
    let node = home.start(config).await;
    node.repository(|state| state.applied_polls > 0).await;
    assert!(!server.requests().iter().any(|request| request.contains("/blobs/")), "a restart downloads nothing");
    node.stop().await;
}

#[tokio::test]
async fn the_size_in_the_manifest_bounds_the_download() {
    let (home, server) = (Home::new(), RegistryServer::start(None));
    for (chart, size) in [("large", 11 << 20), ("lies", 9)] {
        let mut layer = server.blob(ARCHIVE, &gzip_tar(&[("shop/values.yaml", chart)]));
        layer["size"] = size.into();
        server.push(&format!("charts/{chart}"), "1.0.0", &server.artifact(CONFIG, &[layer]));
    }
    let mut config = config(&home, &server.url("charts"), &["large", "lies"]);
    config.repositories[0].insecure = true;
    let node = home.start(config).await;
    for (service, reason) in [
        ("large", "[select] chart `large` 1.0.0 has more than `[upstreams] max_chart` = 10485760 bytes"),
        ("lies", "[fetch] chart `lies` 1.0.0 has a layer of more than the 9 bytes that its manifest says: publish"),
    ] {
        let shown = failure(&node, service).await;
        assert!(shown.starts_with(reason), "{shown}");
    }
    node.stop().await;
}

#[tokio::test]
async fn a_chart_that_the_token_service_refuses_stops_no_other() {
    let (home, server) = (Home::new(), RegistryServer::start(None));
    push(&server, "charts/shop", "1.0.0", "a: 1");
    server.set(|behavior| {
        behavior.token = Some(None);
        behavior.refused = Some(("private%3Apull", 403));
    });
    let mut config = config(&home, &server.url("charts"), &["private", "shop"]);
    config.repositories[0].insecure = true;
    let node = home.start(config).await;
    node.published_of("shop", |_| true).await;
    let shown = failure(&node, "private").await;
    assert!(shown.starts_with("[authenticate] "), "{shown}");
    node.stop().await;
}

#[tokio::test]
async fn credentials_go_to_the_registry_and_nowhere_else() {
    let home = Home::new();
    let [server, storage] = [(); 2].map(|()| RegistryServer::start(Some(&home.file(""))));
    push(&server, "acme/shop", "1.0.0", "a: 1");
    push(&storage, "acme/shop", "1.0.0", "a: 1");
    server.set(|behavior| {
        behavior.token = Some(Some(("robot".to_owned(), "known".to_owned())));
        behavior.storage = Some(storage.base());
    });
    fs::write(home.file("password"), "known\n").unwrap();
    let mut config = config(&home, &server.url("acme"), &["shop"]);
    let one = &mut config.repositories[0];
    (one.ca, one.username) = (Some(home.file("ca.pem")), Some("robot".to_owned()));
    one.password_file = Some(home.file("password"));
    one.redirects = serde_json::from_value(json!(["127.0.0.1"])).unwrap();
    let node = home.start(config).await;
    node.published_of("shop", is_version("1.0.0")).await;
    assert!(
        server
            .requests()
            .iter()
            .any(|request| request.starts_with("200 GET /v2/acme/shop/tags/") && request.ends_with(" +"))
    );
    let stored = storage.requests();
    assert!(!stored.is_empty() && stored.iter().all(|request| !request.ends_with(" +")), "{stored:?}");
    node.stop().await;
}

#[tokio::test]
async fn an_index_may_refer_to_a_registry() {
    let home = Home::new();
    let charts = Charts::start_private(&home.file(""));
    let server = RegistryServer::start(Some(&home.file("")));
    server.set(|behavior| behavior.token = Some(None));
    let (manifest, archive) = push(&server, "charts/shop", "1.0.0_2", "a: 1");
    let entry = |name: &str, digest: &str| {
        let url = format!("{}:1.0.0_2", server.url("charts/shop"));
        (name.to_owned(), json!([{ "version": "1.0.0+2", "digest": digest.replace("sha256:", ""), "urls": [url] }]))
    };
    let wrong = "ab".repeat(32);
    let entries = [entry("manifest", &manifest), entry("archive", &archive), entry("none", ""), entry("wrong", &wrong)];
    let mut entries: serde_json::Map<_, _> = entries.into_iter().collect();
    // The registry sends another chart for a digest in the URL.
    let pinned = format!("sha256:{wrong}");
    push(&server, "charts/shop", &pinned, "a: 1");
    let url = format!("{}@{pinned}", server.url("charts/shop"));
    entries.insert("pinned".to_owned(), json!([{ "version": "1.0.0+2", "urls": [url] }]));
    charts.write(&json!({ "entries": entries }));
    let names = ["manifest", "archive", "none", "wrong", "pinned"];
    let mut config = config(&home, &charts.url(), &names);
    fs::write(home.file("token"), "known\n").unwrap();
    let one = &mut config.repositories[0];
    (one.ca, one.token_file) = (Some(home.file("ca.pem")), Some(home.file("token")));
    one.client_certificate = Some(home.file("edge-client.pem"));
    one.client_key = Some(home.file("edge-client.key"));
    one.redirects = serde_json::from_value(json!(["127.0.0.1"])).unwrap();
    // Loopback is not a public address.
    let mut refused = config.clone();
    refused.repositories[0].redirects = Redirects::default();
    let node = home.start(refused).await;
    let shown = failure(&node, "archive").await;
    assert!(shown.starts_with("[fetch] chart `archive` 1.0.0+2 cannot be fetched: "), "{shown}");
    assert!(shown.contains("public address") && server.requests().is_empty(), "{shown}");
    node.stop().await;
    let node = home.start(config).await;
    for service in &names[..3] {
        let published = node.published_of(service, |_| true).await;
        assert_eq!(published.publication().revision_id.as_str(), format!("helm:1.0.0+2+{archive}"));
    }
    let shown = failure(&node, "wrong").await;
    assert!(shown.starts_with("[fetch] chart `wrong` 1.0.0+2 cannot be fetched: "), "{shown}");
    assert!([&manifest[7..], &archive[7..], &wrong].iter().all(|digest| shown.contains(digest)), "{shown}");
    let shown = failure(&node, "pinned").await;
    assert!(shown.contains(&format!("has the manifest `{pinned}`, but the registry sends one with")), "{shown}");
    let requests = server.requests();
    assert!(requests[0].starts_with("401 GET /v2/charts/shop/manifests/"), "{requests:?}");
    assert!(!requests[0].ends_with(" +"), "the token of the index is not sent: {requests:?}");
    node.poll().await;
    assert_eq!(server.requests(), [""; 0], "a poll without a change requests the index alone");
    node.stop().await;
}

#[tokio::test]
async fn a_token_service_that_only_the_index_names_receives_no_password() {
    let home = Home::new();
    let [server, auth] = [(); 2].map(|()| RegistryServer::start(Some(&home.file(""))));
    push(&server, "charts/shop", "1.0.0", "a: 1");
    let url = format!("{}:1.0.0", server.url("charts/shop"));
    server.serve_index(&json!({ "entries": { "shop": [{ "version": "1.0.0", "urls": [url] }] } }));
    auth.set(|behavior| behavior.token = Some(Some(("robot".to_owned(), "known".to_owned()))));
    server.set(|behavior| {
        behavior.token = Some(None);
        behavior.realm = Some(format!("{}/token", auth.base()));
    });
    fs::write(home.file("password"), "known\n").unwrap();
    let mut config = config(&home, &server.base(), &["shop"]);
    let one = &mut config.repositories[0];
    (one.ca, one.username) = (Some(home.file("ca.pem")), Some("robot".to_owned()));
    one.password_file = Some(home.file("password"));
    one.redirects = serde_json::from_value(json!(["127.0.0.1"])).unwrap();
    let node = home.start(config).await;
    let shown = failure(&node, "shop").await;
    assert!(
        shown.contains("receives none, because only the index names it: follow the chart of the registry"),
        "{shown}"
    );
    let requests = auth.requests();
    assert!(!requests.is_empty() && requests.iter().all(|request| !request.ends_with(" +")), "{requests:?}");
    node.stop().await;
}
