//! Operators, over their own listener.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use weir_origin::config::Config;
use weir_shared::event::EventKind;
use weir_shared::process::{certificates, tls};

use crate::event_reader::Reader;
use crate::node::{Home, Node, in_time, names, service};
use crate::smart_http::SmartHttp;
use crate::upstream::Upstream;

const TOKEN: &str = "an-operator-s-own-token";

/// An operator with a token, or with a certificate.
pub(crate) struct Operator {
    client: reqwest::Client,
    base: String,
    token: Option<&'static str>,
}

/// What an operator was answered.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) status: StatusCode,
    etag: String,
    allow: String,
    body: Value,
}

impl Told {
    /// The problem's kind and detail.
    pub(crate) fn problem(&self) -> (&str, &str) {
        let kind = self.body["type"].as_str().unwrap().strip_prefix("urn:weir:problem:").unwrap();
        (kind, self.body["detail"].as_str().unwrap())
    }
}

impl Operator {
    /// Shows the token.
    pub(crate) fn of(home: &Home, node: &Node) -> Self {
        Self { token: Some(TOKEN), ..Self::without_token(home, node, None) }
    }

    fn without_token(home: &Home, node: &Node, certificate: Option<&str>) -> Self {
        let files = certificate.map(|name| [home.file(&format!("{name}.pem")), home.file(&format!("{name}.key"))]);
        let identity = files.as_ref().map(|[pem, key]| (pem.as_path(), key.as_path()));
        let config = tls::client_config(&home.file("ca.pem"), identity).unwrap();
        let client = reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy().build().unwrap();
        let base = format!("https://{}", node.running.operator_address().unwrap());
        Self { client, base, token: None }
    }

    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> Told {
        let mut request = self.client.request(method, format!("{}{path}", self.base)).timeout(Duration::from_secs(60));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let response = request.send().await.unwrap();
        let header = |name: &str| response.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        let (status, etag, allow) = (response.status(), header("etag"), header("allow"));
        let text = response.text().await.unwrap();
        let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
        Told { status, etag, allow, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Told {
        self.send(Method::GET, path, &[], None).await
    }

    pub(crate) async fn put(&self, path: &str, document: Value) -> Told {
        self.send(Method::PUT, path, &[], Some(document)).await
    }

    async fn delete(&self, path: &str) -> Told {
        self.send(Method::DELETE, path, &[], None).await
    }
}

/// An origin with an operators' listener; its file holds the repository `shop` and the service `shop-prod`.
pub(crate) fn config(home: &Home, upstream: &Upstream) -> Config {
    std::fs::write(home.file("operator-token"), TOKEN).unwrap();
    let mut config = home.config(&upstream.url());
    config.operator_listen = Some(([127, 0, 0, 1], 0).into());
    config.operator.operator_token_file = Some(home.file("operator-token"));
    // The upstreams of the tests are on loopback.
    config.upstreams.private_addresses = true;
    config
}

/// The same with nothing in its file.
fn empty_config(home: &Home, upstream: &Upstream) -> Config {
    let mut config = config(home, upstream);
    config.repositories.clear();
    config.services.clear();
    config
}

fn repository_at(server: &SmartHttp) -> Value {
    json!({ "url": server.url("bare.git"), "poll_interval": "1h" })
}

/// A Git server of an upstream's bare repository.
fn serve(upstream: &Upstream) -> SmartHttp {
    SmartHttp::start(upstream.bare().parent().unwrap(), None)
}

#[tokio::test]
async fn operators_are_known_by_token_or_certificate_and_nobody_else_is() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    let nobody = Operator::without_token(&home, &node, None);
    for path in ["/v1/services", "/v1/services/shop-prod", "/v1/nothing", "/v1/services/UPPER"] {
        let told = nobody.get(path).await;
        assert_eq!((told.status.as_u16(), told.problem().0), (401, "unauthorized"), "{path}");
    }
    assert_eq!(Operator { token: Some("another-token-of-16"), ..nobody }.get("/v1/services").await.status, 401);
    assert_eq!(Operator::without_token(&home, &node, Some("edge-client")).get("/v1/services").await.status, 401);
    assert_eq!(Operator::without_token(&home, &node, Some("operator")).get("/v1/services").await.status, 200);
    let operator = Operator::of(&home, &node);
    assert_eq!(operator.get("/v1/services").await.status, 200);
    assert_eq!(operator.get("/v1/nothing").await.problem().0, "no-such-path");
    assert_eq!(operator.get("/v1/services/UPPER").await.problem().0, "malformed-request");
    for (path, method, allow) in [
        ("/v1/services", Method::PUT, "GET, HEAD"),
        ("/v1/services/shop-prod", Method::POST, "GET, HEAD, PUT, DELETE"),
        ("/v1/repositories/shop/refresh", Method::GET, "POST"),
    ] {
        let told = operator.send(method, path, &[], None).await;
        assert_eq!((told.status.as_u16(), told.allow.as_str()), (405, allow), "{path}");
    }
    assert!(node.metric("weir_origin_operator_requests_total{route=\"services\",status=\"401\"}").await >= 3.0);
    node.stop().await;

    // Without a token a certificate is the only way, and that is said.
    let mut config = config(&home, &upstream);
    config.operator.operator_token_file = None;
    let node = home.start(config).await;
    let told = Operator::of(&home, &node).get("/v1/services").await;
    assert_eq!((told.status.as_u16(), told.problem().0), (403, "no-operator-token"));
    assert_eq!(Operator::without_token(&home, &node, Some("operator")).get("/v1/services").await.status, 200);
    node.stop().await;
}

#[tokio::test]
async fn what_is_there_is_shown_in_pages_with_its_state() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    let descriptor = node.published(|_| true).await;
    node.repository(|state| state.attempts > 0).await;
    let operator = Operator::of(&home, &node);
    let shown = operator.get("/v1/services/shop-prod").await;
    assert_eq!((&shown.body["repository"], &shown.body["ref"]), (&json!("shop"), &json!("main")));
    assert_eq!(shown.body["defined_by"], "file");
    assert_eq!(shown.body["status"]["published"]["digest"], descriptor.publication().digest.to_string());
    let again = operator.send(Method::GET, "/v1/services/shop-prod", &[("if-none-match", &shown.etag)], None).await;
    assert_eq!(again.status, 304);
    assert_eq!(operator.get("/v1/repositories/shop").await.body["status"]["health"], "healthy");

    for name in ["a", "c", "b"] {
        let told = operator.put(&format!("/v1/services/{name}"), json!({ "repository": "shop" })).await;
        assert_eq!(told.status, 201, "{told:?}");
    }
    let mut seen = Vec::new();
    let mut page = String::new();
    loop {
        let listing = operator.get(&format!("/v1/services?limit=2{page}")).await.body;
        let names =
            listing["services"].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap().to_owned());
        seen.extend(names);
        match listing["next_page"].as_str() {
            Some(next) => page = format!("&page={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "b", "c", "shop-prod"]);
    let none = operator.get("/v1/services?repository=other").await.body;
    assert_eq!(none, json!({ "services": [], "next_page": null }));
    assert_eq!(operator.get("/v1/services?colour=red").await.status, 400);

    let polls = operator.send(Method::POST, "/v1/repositories/shop/refresh", &[], None).await;
    assert_eq!(polls.status, 202);
    let before = polls.body["polls"].as_u64().unwrap();
    node.repository(|state| state.attempts > before).await;
    assert_eq!(operator.send(Method::POST, "/v1/repositories/none/refresh", &[], None).await.status, 404);
    node.stop().await;
}

#[tokio::test]
async fn what_operators_define_is_published_changed_and_there_after_a_restart() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = serve(&upstream);
    let node = home.start(empty_config(&home, &upstream)).await;
    assert_eq!(node.admin("/readyz").await.0, 200);
    let operator = Operator::of(&home, &node);
    let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy" });
    let early = operator.put("/v1/services/shop-prod", document.clone()).await;
    assert_eq!((early.status.as_u16(), early.problem().0), (409, "repository-missing"));
    let created = operator.put("/v1/repositories/shop", repository_at(&server)).await;
    assert_eq!((created.status.as_u16(), &created.body["defined_by"]), (201, &json!("api")), "{created:?}");
    assert_eq!(operator.put("/v1/repositories/shop", repository_at(&server)).await.status, 200);
    let created = operator.put("/v1/services/shop-prod", document.clone()).await;
    assert_eq!(created.status, 201, "{created:?}");
    let first = node.published(|_| true).await;
    assert_eq!(names(&node.tarball(&first).await), ["app.yaml"]);
    assert_eq!(node.admin("/readyz").await.0, 200);

    // Another folder: what is published stays until that is.
    let mut moved = created.body.clone();
    moved["folder"] = "docs".into();
    let changed = operator.put("/v1/services/shop-prod", moved.clone()).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    let second = node.published(|new| new.publication().digest != first.publication().digest).await;
    assert_eq!(names(&node.tarball(&second).await), ["readme.md"]);
    assert!(second.publication().generation > first.publication().generation);
    // Sent again it was made from a version that is not the current one.
    let lost = operator.put("/v1/services/shop-prod", moved).await;
    assert_eq!((lost.status.as_u16(), lost.problem().0), (409, "lost-update"));
    let stale = [("if-match", created.etag.as_str())];
    let lost = operator.send(Method::PUT, "/v1/services/shop-prod", &stale, Some(document.clone())).await;
    assert_eq!((lost.status.as_u16(), lost.problem().0), (412, "precondition-failed"));
    let there = operator.send(Method::PUT, "/v1/services/shop-prod", &[("if-none-match", "*")], Some(document)).await;
    assert_eq!(there.status, 412);
    let current = operator.get("/v1/services/shop-prod").await;
    assert_eq!(current.body["version"], changed.body["version"], "nothing was changed");
    node.stop().await;

    let node = home.start(empty_config(&home, &upstream)).await;
    assert_eq!(node.descriptor().await.bytes(), second.bytes(), "served at once");
    let operator = Operator::of(&home, &node);
    assert_eq!(operator.get("/v1/services/shop-prod").await.body["version"], changed.body["version"]);
    node.poll().await;
    upstream.push("docs/readme.md", b"other words\n");
    node.poll().await;
    node.published(|new| new.publication().digest != second.publication().digest).await;
    assert_eq!(node.metric("weir_origin_catalog_objects{defined_by=\"api\",kind=\"service\"}").await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn what_is_deleted_is_a_tombstone_and_what_comes_again_is_newer() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = serve(&upstream);
    let node = home.start(empty_config(&home, &upstream)).await;
    let operator = Operator::of(&home, &node);
    operator.put("/v1/repositories/shop", repository_at(&server)).await;
    let document = json!({ "repository": "shop", "folder": "deploy" });
    assert_eq!(operator.put("/v1/services/shop-prod", document.clone()).await.status, 201);
    let first = node.published(|_| true).await.publication().generation;
    let mirror = home.data_dir().join("mirrors/shop");
    assert!(mirror.is_dir());
    let edge = home.client("edge-client");
    let mut reader = Reader::of(&edge, &node, "").await;
    reader.until(|kind| matches!(kind, EventKind::SnapshotEnd)).await;

    let refused = operator.delete("/v1/repositories/shop").await;
    assert_eq!((refused.status.as_u16(), refused.problem().0), (409, "repository-has-services"));
    assert!(refused.problem().1.contains("`shop-prod`"), "{refused:?}");
    assert_eq!(operator.delete("/v1/services/none").await.status, 404);
    assert_eq!(operator.delete("/v1/services/shop-prod").await.status, 204);
    let tombstone = reader.until(|kind| matches!(kind, EventKind::Tombstone { .. })).await;
    assert_eq!(tombstone, EventKind::Tombstone { service: service(), generation: first });
    assert_eq!(node.get("/v1/services/shop-prod").await.status, 404);
    // Who begins anew is told too.
    let mut late = Reader::of(&edge, &node, "").await;
    late.until(|kind| matches!(kind, EventKind::Tombstone { .. })).await;

    assert_eq!(operator.put("/v1/services/shop-prod", document.clone()).await.status, 201);
    let again = node.published(|_| true).await.publication().generation;
    assert!(again > first);
    let mut latest = Reader::of(&edge, &node, "").await;
    while let Some(event) = latest.next().await {
        assert!(!matches!(event.kind, EventKind::Tombstone { .. }), "it is there again");
        if matches!(event.kind, EventKind::SnapshotEnd) {
            break;
        }
    }

    // With everything that belongs to it, and its mirror.
    assert_eq!(operator.delete("/v1/repositories/shop?cascade=maybe").await.status, 400);
    assert_eq!(operator.delete("/v1/repositories/shop?cascade=true").await.status, 204);
    assert_eq!(operator.get("/v1/services").await.body["services"], json!([]));
    in_time(async {
        while mirror.exists() || node.admin("/metrics").await.1.contains("repository=\"shop\"") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // And at once again, while the one before may still be ending.
    for _ in 0..3 {
        assert_eq!(operator.put("/v1/repositories/shop", repository_at(&server)).await.status, 201);
        assert_eq!(operator.put("/v1/services/shop-prod", document.clone()).await.status, 201);
        node.published(|_| true).await;
        assert_eq!(operator.delete("/v1/repositories/shop?cascade=true").await.status, 204);
    }
    node.stop().await;
    let node = home.start(empty_config(&home, &upstream)).await;
    assert_eq!(node.get("/v1/services/shop-prod").await.status, 404);
    node.stop().await;
}

#[tokio::test]
async fn a_service_moves_to_another_repository_and_stays_what_it_was_until_then() {
    let (home, upstream, other) = (Home::new(), Upstream::small(), Upstream::small());
    other.push("deploy/other.yaml", b"x");
    let (server, slow) = (serve(&upstream), serve(&other));
    let node = home.start(empty_config(&home, &upstream)).await;
    let operator = Operator::of(&home, &node);
    operator.put("/v1/repositories/shop", repository_at(&server)).await;
    operator.put("/v1/services/shop-prod", json!({ "repository": "shop", "folder": "deploy" })).await;
    let first = node.published(|_| true).await;
    slow.behave(crate::smart_http::Manner { status: Some(503), ..Default::default() });
    operator.put("/v1/repositories/other", repository_at(&slow)).await;
    let moved = operator.put("/v1/services/shop-prod", json!({ "repository": "other", "folder": "deploy" })).await;
    assert_eq!(moved.status, 200);
    assert_eq!(node.descriptor().await.bytes(), first.bytes());
    slow.behave(crate::smart_http::Manner::default());
    // Another interval is another agent of the same mirror.
    let mut document = repository_at(&slow);
    document["poll_interval"] = "30m".into();
    assert_eq!(operator.put("/v1/repositories/other", document).await.status, 200);
    let second = node.published(|new| new.publication().repository.as_str() == "other").await;
    assert_eq!(names(&node.tarball(&second).await), ["app.yaml", "other.yaml"]);
    assert_eq!(operator.delete("/v1/repositories/shop").await.status, 204);
    assert_eq!(node.descriptor().await.bytes(), second.bytes());
    node.stop().await;
}

#[tokio::test]
async fn the_file_wins_and_is_read_again_on_demand() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    node.published(|_| true).await;
    let operator = Operator::of(&home, &node);
    for path in ["/v1/services/shop-prod", "/v1/repositories/shop"] {
        let (put, deleted) = (json!({ "repository": "shop", "url": "https://x/y" }), operator.delete(path).await);
        assert_eq!((deleted.status.as_u16(), deleted.problem().0), (409, "defined-by-file"), "{path}");
        assert!(operator.put(path, put).await.status.is_client_error(), "{path}");
    }
    assert_eq!(operator.put("/v1/services/mine", json!({ "repository": "shop", "folder": "docs" })).await.status, 201);

    // The file takes the name `mine`, and gives it back; another service comes and goes with it.
    let file = |services: &str| {
        let text = format!(
            "name = \"origin-1\"\nlisten = \"127.0.0.1:0\"\ndata_dir = \"data\"\n[tls]\ncertificate = \"origin.pem\"\n\
             key = \"origin.key\"\nclient_ca = \"ca.pem\"\n[[repository]]\nname = \"shop\"\nurl = \"{}\"\n\
             poll_interval = \"1h\"\n{services}",
            upstream.url()
        );
        std::fs::write(home.file("origin.toml"), text).unwrap();
    };
    let of = async |name: &str| operator.get(&format!("/v1/services/{name}")).await;
    let entry = |name: &str| format!("[[service]]\nname = \"{name}\"\nrepository = \"shop\"\nfolder = \"deploy\"\n");
    file(&format!("{}{}", entry("mine"), entry("theirs")));
    node.running.reload_file(&home.file("origin.toml")).await.unwrap();
    let mine = of("mine").await.body;
    assert_eq!((&mine["defined_by"], &mine["folder"]), (&json!("file"), &json!("deploy")));
    assert_eq!(of("theirs").await.status, 200);
    assert_eq!(of("shop-prod").await.status, 404, "it left the file");
    assert_eq!(operator.delete("/v1/services/mine").await.problem().0, "defined-by-file");

    file("[[service]]\nname = \"broken\"\n");
    assert!(node.running.reload_file(&home.file("origin.toml")).await.is_err());
    assert_eq!(of("theirs").await.status, 200, "nothing was taken over");

    file("");
    node.running.reload_file(&home.file("origin.toml")).await.unwrap();
    let mine = of("mine").await.body;
    assert_eq!((&mine["defined_by"], &mine["folder"]), (&json!("api"), &json!("docs")), "it is back");
    assert_eq!(of("theirs").await.status, 404);
    node.stop().await;
}

#[tokio::test]
async fn a_bad_document_is_refused_with_all_its_faults() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = config(&home, &upstream);
    config.limits.max_services = 2;
    config.operator.secrets_dir = Some(home.file("secrets"));
    std::fs::create_dir(home.file("secrets")).unwrap();
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    let told = operator.put("/v1/services/a", json!({ "ref": "a..b", "folder": "../etc", "colour": 1 })).await;
    assert_eq!((told.status.as_u16(), told.problem().0), (400, "invalid-document"));
    let fields: Vec<_> = told.body["errors"].as_array().unwrap().iter().map(|each| each["field"].as_str()).collect();
    for field in ["repository", "ref", "folder", "colour"] {
        assert!(fields.contains(&Some(field)), "{field}: {told:?}");
    }
    assert_eq!(told.body["object"], json!({ "kind": "service", "name": "a" }));
    for (document, field) in [
        (json!({ "url": "file:///etc" }), "url"),
        (json!({ "url": upstream.bare() }), "url"),
        (json!({ "url": "https://git.example/x", "ca": "/etc/shadow" }), "ca"),
        (
            json!({ "url": "https://git.example/x", "username": "u", "password_file": "../other/token" }),
            "password_file",
        ),
        (json!({ "url": "https://git.example/x", "poll_interval": "1ms" }), "poll_interval"),
    ] {
        let told = operator.put("/v1/repositories/a", document.clone()).await;
        assert_eq!(told.status, 400, "{document}");
        assert!(told.problem().1.contains(&format!("`{field}`")), "{document}: {told:?}");
    }
    let long = json!({ "repository": "x".repeat(300 << 10) });
    assert_eq!(operator.put("/v1/services/a", long).await.problem().0, "too-large");
    assert_eq!(operator.put("/v1/services/a", json!({ "repository": "shop" })).await.status, 201);
    let told = operator.put("/v1/services/b", json!({ "repository": "shop" })).await;
    assert_eq!((told.status.as_u16(), told.problem().0), (429, "limit-reached"));
    assert!(told.problem().1.contains("`max_services`"), "{told:?}");
    assert_eq!(node.metric("weir_origin_catalog_limit{kind=\"service\"}").await, 2.0);
    node.stop().await;
}

#[tokio::test]
async fn a_secret_is_used_for_the_host_that_it_was_put_there_for() {
    let (home, upstream) = (Home::new(), Upstream::small());
    std::fs::create_dir(home.file("git")).unwrap();
    certificates::write(&home.file("git"), &[]).unwrap();
    let server = SmartHttp::start(upstream.bare().parent().unwrap(), Some(&home.file("git")));
    // `ci:pass` in base64.
    server.behave(crate::smart_http::Manner {
        authorization: Some("Basic Y2k6cGFzcw==".to_owned()),
        ..Default::default()
    });
    let secrets = home.file("secrets");
    std::fs::create_dir_all(secrets.join("localhost")).unwrap();
    std::fs::create_dir_all(secrets.join("127.0.0.1")).unwrap();
    std::fs::copy(home.file("git").join("ca.pem"), secrets.join("localhost/ca.pem")).unwrap();
    std::fs::write(secrets.join("localhost/token"), "pass\n").unwrap();
    let mut config = empty_config(&home, &upstream);
    config.operator.secrets_dir = Some(secrets);
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    let document = |host: &str| {
        json!({
            "url": format!("https://{host}:{}/bare.git", server.address.port()), "poll_interval": "1h",
            "ca": "ca.pem", "username": "ci", "password_file": "token",
        })
    };
    // The same server by another name, for which there is no secret.
    assert_eq!(operator.put("/v1/repositories/shop", document("127.0.0.1")).await.status, 201);
    assert_eq!(operator.put("/v1/services/shop-prod", json!({ "repository": "shop" })).await.status, 201);
    node.repository(|state| state.attempts > 0).await;
    assert_eq!(operator.get("/v1/repositories/shop").await.body["status"]["health"], "unhealthy");
    assert!(server.take_requests().iter().all(|head| !head.contains("Y2k6cGFzcw==")));
    assert_eq!(operator.put("/v1/repositories/shop", document("localhost")).await.status, 200);
    node.published(|_| true).await;
    let shown = operator.get("/v1/repositories/shop").await.body;
    assert_eq!(shown["password_file"], "token", "as it was written");
    node.stop().await;
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_published_and_publishes_nothing() {
    let (home, upstream) = (Home::new(), Upstream::small());
    upstream.push("deploy/bin/run", b"#!/bin/sh\n");
    upstream.push("deploy/notes.txt", b"notes");
    let node = home.start(config(&home, &upstream)).await;
    let first = node.published(|_| true).await;
    node.repository(|state| state.attempts > 0).await;
    let operator = Operator::of(&home, &node);
    let post = async |path: &str, body: Option<Value>| operator.send(Method::POST, path, &[], body).await;
    let told = post("/v1/services/shop-prod/dry-run", None).await;
    assert_eq!(told.status, 200, "{told:?}");
    let paths = |told: &Told| -> Vec<String> {
        let entries = told.body["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(paths(&told), names(&node.tarball(&first).await), "what is published");
    assert_eq!(told.body["commit"], first.publication().commit.to_string());
    assert_eq!(told.body["entries"][0], json!({ "path": "app.yaml", "kind": "file", "mode": "0644", "bytes": 12 }));

    // In pages, of one commit, whatever is pushed meanwhile.
    let page = post("/v1/services/shop-prod/dry-run?limit=3", None).await;
    upstream.push("deploy/a", b"new");
    node.poll().await;
    let next = page.body["next_page"].as_str().unwrap();
    let rest = post(&format!("/v1/services/shop-prod/dry-run?limit=3&page={next}"), None).await;
    assert_eq!([paths(&page), paths(&rest)].concat(), paths(&told));
    assert_eq!((&rest.body["next_page"], &rest.body["entries_total"]), (&Value::Null, &json!(4)));

    // Not with the page of another document, or one that somebody made up.
    let other = json!({ "repository": "shop", "ref": "main", "folder": "docs" });
    let told = post(&format!("/v1/services/shop-prod/dry-run?page={next}"), Some(other)).await;
    assert_eq!((told.status.as_u16(), told.problem().0), (400, "malformed-request"));

    // A document that is not stored.
    let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy", "exclude": ["*.txt"] });
    let told = post("/v1/services/new/dry-run", Some(document)).await;
    assert_eq!(paths(&told), ["a", "app.yaml", "bin/", "bin/run"]);
    assert_eq!(operator.get("/v1/services/new").await.status, 404);
    assert_eq!(post("/v1/services/new/dry-run", None).await.status, 404);
    let told = post("/v1/services/new/dry-run", Some(json!({ "repository": "shop", "folder": "gone" }))).await;
    assert_eq!((told.status.as_u16(), told.problem().0), (409, "not-publishable"));
    let told = post("/v1/services/new/dry-run", Some(json!({ "repository": "none" }))).await;
    assert_eq!(told.problem().0, "no-such-repository");
    node.stop().await;
}

#[tokio::test]
async fn the_pages_of_a_dry_run_are_of_one_commit_whatever_leads_to_it() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let old = upstream.push("deploy/of-the-request", b"x");
    upstream.git(&["push", "--quiet", "origin", "HEAD:refs/pull/7/head"]);
    upstream.git(&["reset", "--quiet", "--hard", "HEAD~"]);
    upstream.git(&["push", "--quiet", "--force", "origin", "HEAD"]);
    let mut config = config(&home, &upstream);
    config.services[0].revision = "refs/pull/7/head".parse().unwrap();
    config.limits.max_tarball = bytesize::ByteSize(4000);
    let node = home.start(config).await;
    node.published(|_| true).await;
    node.repository(|state| state.attempts > 0).await;
    let operator = Operator::of(&home, &node);
    let path = "/v1/services/shop-prod/dry-run";
    let post = async |path: &str, body: Option<Value>| operator.send(Method::POST, path, &[], body).await;
    let first = post(&format!("{path}?limit=1"), None).await;
    assert_eq!(first.body["commit"], old, "no branch leads to it");
    // And then nothing does any more.
    upstream.git(&["push", "--quiet", "--force", "origin", "HEAD:refs/pull/7/head"]);
    node.poll().await;
    let next = first.body["next_page"].as_str().unwrap();
    let rest = post(&format!("{path}?limit=1&page={next}"), None).await;
    assert_eq!((&rest.body["commit"], &rest.body["entries"][0]["path"]), (&json!(old), &json!("of-the-request")));
    assert_eq!(post(path, None).await.body["entries_total"], 1);
    // Nobody has a commit listed by writing a cursor himself.
    let made_up = format!("{path}?page={old}.0.{}", "0".repeat(64));
    assert_eq!(post(&made_up, None).await.status, 400);
    let by_id = post(path, Some(json!({ "repository": "shop", "ref": old }))).await;
    assert_eq!(by_id.problem().0, "not-publishable");

    // What would be too large is not publishable either.
    upstream.push("deploy/large", &[b'x'; 3000]);
    node.poll().await;
    let told = post(path, Some(json!({ "repository": "shop", "ref": "main" }))).await;
    assert_eq!(told.problem().0, "not-publishable");
    assert!(told.problem().1.contains("more than 4000 bytes"), "{told:?}");
    let unknown = post(path, Some(json!({ "repository": "shop", "ref": "refs/pull/8/head" }))).await;
    assert!(unknown.problem().1.contains("not asked for it yet"), "{unknown:?}");
    node.stop().await;
}

#[tokio::test]
async fn versions_are_looked_at_compared_gone_back_to_and_let_go() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    let old = node.published(|_| true).await;
    upstream.push("deploy/app.yaml", b"replicas: 9\n");
    node.poll().await;
    let new = node.descriptor().await;
    let operator = Operator::without_token(&home, &node, Some("operator"));
    let (from, to) = (old.publication().digest, new.publication().digest);

    let newest = operator.get("/v1/services/shop-prod/history?limit=1").await;
    assert_eq!(newest.body["publications"][0]["digest"], to.to_string(), "{newest:?}");
    let next = newest.body["next_page"].as_str().unwrap();
    let rest = operator.get(&format!("/v1/services/shop-prod/history?page={next}")).await;
    assert_eq!(rest.body["publications"][0]["digest"], from.to_string());
    assert_eq!(rest.body["next_page"], Value::Null);

    let diff = operator.get(&format!("/v1/services/shop-prod/diff?from={from}&to={to}")).await;
    assert_eq!((&diff.body["changed"], &diff.body["added"]), (&json!(1), &json!(0)), "{diff:?}");
    assert_eq!(diff.body["differences"][0]["path"], "app.yaml");
    assert_eq!(operator.get("/v1/services/shop-prod/diff").await.status, 400);
    let none = operator.get(&format!("/v1/services/shop-prod/diff?from={from}&to=b3-{}", "0".repeat(64))).await;
    assert_eq!((none.status.as_u16(), none.problem().0), (404, "no-such-version"));

    let order = json!({ "digest": from, "generation": old.publication().generation });
    let lost = operator.send(Method::POST, "/v1/services/shop-prod/rollback", &[], Some(order)).await;
    assert_eq!((lost.status.as_u16(), lost.problem().0), (409, "lost-update"));
    let order = json!({ "digest": from, "generation": new.publication().generation });
    let back = operator.send(Method::POST, "/v1/services/shop-prod/rollback", &[], Some(order)).await;
    assert_eq!((back.status.as_u16(), &back.body["status"]["condition"]), (200, &json!("pinned")), "{back:?}");
    assert_eq!(node.descriptor().await.publication().digest, from);
    let history = operator.get("/v1/services/shop-prod/history").await;
    assert_eq!(history.body["publications"][0]["by"], "operator-1");

    // Let go, and held where it is.
    assert_eq!(operator.delete("/v1/services/shop-prod/pin").await.status, 200);
    node.published(|now| now.publication().digest == to).await;
    assert_eq!(operator.send(Method::PUT, "/v1/services/shop-prod/pin", &[], None).await.status, 200);
    upstream.push("deploy/app.yaml", b"replicas: 10\n");
    node.poll().await;
    assert_eq!(node.descriptor().await.publication().digest, to);
    node.stop().await;
}
