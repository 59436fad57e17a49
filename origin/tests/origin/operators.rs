//! Operators, over their own listener: who they are, and what they are shown.

use crate::prelude::*;

#[tokio::test]
async fn operators_authenticate_by_token_or_certificate() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    let nobody = Operator::without_token(&home, &node, None);
    for path in ["/v1/services", "/v1/services/shop-prod", "/v1/nothing", "/v1/services/UPPER"] {
        let reply = nobody.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.problem().0), (401, "unauthorized"), "{path}");
    }
    assert!(nobody.get("/v1/services").await.problem().1.contains("Send the token"));
    let wrong = nobody.with_token("another-token-of-16").get("/v1/services").await;
    assert_eq!((wrong.status.as_u16(), wrong.problem().1.contains("another hub")), (401, true), "{wrong:?}");
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
        let reply = operator.send(method, path, &[], None).await;
        assert_eq!((reply.status.as_u16(), reply.allow.as_str()), (405, allow), "{path}");
    }
    // Git services have no token, so a wrong webhook path gets a 404.
    let nobody = Operator::without_token(&home, &node, None);
    for (method, path, status, word) in [
        (Method::POST, "/v1/webhooks/foo/shop", 404, "github, gitlab"),
        (Method::POST, "/v1/webhooks/github", 404, "github, gitlab"),
        (Method::GET, "/v1/webhooks/github/shop", 405, ""),
        (Method::POST, "/v1/webhooks/github/shop", 401, "signature"),
    ] {
        let reply = nobody.send(method, path, &[], None).await;
        assert!(reply.status == status && reply.problem().1.contains(word), "{path} {reply:?}");
    }
    assert!(node.metric("weir_origin_operator_requests_total{route=\"services\",status=\"401\"}").await >= 3.0);
    node.stop().await;

    // Without a token file only certificates authenticate, and the response says so.
    let mut config = config(&home, &upstream);
    config.operator_api.operator_token_file = None;
    let node = home.start(config).await;
    let reply = Operator::of(&home, &node).get("/v1/services").await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (403, "no-operator-token"));
    assert_eq!(Operator::without_token(&home, &node, Some("operator")).get("/v1/services").await.status, 200);
    node.stop().await;
}

#[tokio::test]
async fn lists_are_paged_and_have_the_status() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    let descriptor = node.published(|_| true).await;
    node.repository(|state| state.applied_polls > 0).await;
    let operator = Operator::of(&home, &node);
    let shown = operator.get("/v1/services/shop-prod").await;
    assert_eq!((&shown.body["repository"], &shown.body["ref"]), (&json!("shop"), &json!("main")));
    assert_eq!(shown.body["defined_by"], "file");
    assert_eq!(shown.body["status"]["published"]["digest"], descriptor.publication().digest.to_string());
    let again = operator.send(Method::GET, "/v1/services/shop-prod", &[("if-none-match", &shown.etag)], None).await;
    assert_eq!(again.status, 304);
    assert_eq!(operator.get("/v1/repositories/shop").await.body["status"]["health"], "healthy");

    for name in ["a", "c", "b"] {
        let reply = operator.put(&format!("/v1/services/{name}"), json!({ "repository": "shop" })).await;
        assert_eq!(reply.status, 201, "{reply:?}");
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

    let polls = operator.post("/v1/repositories/shop/refresh").await;
    assert_eq!(polls.status, 202);
    let before = polls.body["polls"].as_u64().unwrap();
    node.repository(|state| state.applied_polls > before).await;
    assert_eq!(operator.post("/v1/repositories/none/refresh").await.status, 404);
    node.stop().await;
}

#[tokio::test]
async fn versions_are_listed_compared_rolled_back_and_unpinned() {
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
    assert_eq!(diff.body["differences"][0].get("old_text"), None);
    let texts = operator.get(&format!("/v1/services/shop-prod/diff?from={from}&to={to}&texts")).await;
    assert_eq!(texts.body["differences"][0]["new_text"], "replicas: 9\n", "{texts:?}");
    assert_eq!(operator.get("/v1/services/shop-prod/diff").await.status, 400);
    let none = operator.get(&format!("/v1/services/shop-prod/diff?from={from}&to=b3-{}", "0".repeat(64))).await;
    assert_eq!((none.status.as_u16(), none.problem().0), (404, "no-such-version"));

    let order = json!({ "digest": from, "generation": old.publication().generation });
    let lost = operator.send(Method::POST, "/v1/services/shop-prod/rollback", &[], Some(order)).await;
    assert_eq!((lost.status.as_u16(), lost.problem().0), (409, "lost-update"));
    // Revisions by what people call them.
    let commit = old.publication().commit.as_ref().unwrap().to_string();
    for named in [&commit[..9], &from.to_string()[..12], "previous"] {
        let named = operator.get(&format!("/v1/services/shop-prod/diff?from={named}&to=current")).await.body;
        assert_eq!(
            (&named["from"]["digest"], &named["to"]["digest"], &named["changed"]),
            (&json!(from), &json!(to), &json!(1))
        );
    }
    let pin =
        async |method: Method, body: Value| operator.send(method, "/v1/services/shop-prod/pin", &[], Some(body)).await;
    let another = pin(Method::PUT, json!({ "revision": "previous" })).await;
    assert_eq!((another.status.as_u16(), another.problem().1.contains("rollback")), (400, true), "{another:?}");
    let long = pin(Method::PUT, json!({ "revision": "current", "reason": "r".repeat(257) })).await;
    assert_eq!((long.status.as_u16(), long.problem().1.contains("`reason`")), (400, true), "{long:?}");
    for reason in ["the old one\ncrashes", "it \u{202e}sehsarc", "\u{1b}[31m"] {
        let hidden = pin(Method::PUT, json!({ "reason": reason })).await;
        assert_eq!((hidden.status.as_u16(), hidden.problem().1.contains("`reason`")), (400, true), "{hidden:?}");
    }
    let reason = "the old one crashes";
    let order = json!({ "revision": commit, "generation": new.publication().generation, "reason": reason });
    let back = operator.send(Method::POST, "/v1/services/shop-prod/rollback", &[], Some(order)).await;
    assert_eq!((back.status.as_u16(), &back.body["status"]["condition"]), (200, &json!("pinned")), "{back:?}");
    let pinned = &back.body["status"]["pinned"];
    assert_eq!((&pinned["by"], &pinned["reason"]), (&json!("operator-1"), &json!(reason)));
    assert_eq!(node.descriptor().await.publication().digest, from);
    let history = operator.get("/v1/services/shop-prod/history").await;
    let newest = &history.body["publications"][0];
    assert_eq!((&newest["by"], &newest["reason"]), (&json!("operator-1"), &json!(reason)));
    // A repeated `previous` does not undo it, nor does another generation in the request make it do so.
    for generation in [json!(null), newest["generation"].clone()] {
        let order = json!({ "revision": "previous", "generation": generation });
        let again = operator.send(Method::POST, "/v1/services/shop-prod/rollback", &[], Some(order)).await;
        assert_eq!((again.status.as_u16(), again.problem().0), (409, "already-rolled-back"), "{again:?}");
        assert!(again.problem().1.contains("by operator-1"), "{again:?}");
    }
    assert_eq!(node.descriptor().await.publication().digest, from);
    // Two publications of one commit have one content: they are the same version.
    assert_eq!(operator.get(&format!("/v1/services/shop-prod/diff?from={commit}&to={to}")).await.status, 200);

    // Let go, and held where it is.
    assert_eq!(pin(Method::DELETE, json!({ "reason": "mended" })).await.status, 200);
    node.published(|now| now.publication().digest == to).await;
    let history = operator.get("/v1/services/shop-prod/history").await.body;
    let acts = &history["publications"][1]["acts"];
    for (index, (event, given)) in [("unpinned", "mended"), ("pinned", reason)].into_iter().enumerate() {
        let act = &acts[index];
        assert_eq!((&act["event"], &act["by"], &act["reason"]), (&json!(event), &json!("operator-1"), &json!(given)));
    }
    assert_eq!(operator.send(Method::PUT, "/v1/services/shop-prod/pin", &[], None).await.status, 200);
    upstream.push("deploy/app.yaml", b"replicas: 10\n");
    node.poll().await;
    assert_eq!(node.descriptor().await.publication().digest, to);
    node.stop().await;
}

#[tokio::test]
async fn an_invalid_document_is_refused_with_all_errors() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = config(&home, &upstream);
    config.limits.max_services = 2;
    config.operator_api.secrets_dir = Some(home.file("secrets"));
    std::fs::create_dir(home.file("secrets")).unwrap();
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    let reply = operator.put("/v1/services/a", json!({ "ref": "a..b", "folder": "../etc", "colour": 1 })).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (400, "invalid-document"));
    let fields: Vec<_> = reply.body["errors"].as_array().unwrap().iter().map(|each| each["field"].as_str()).collect();
    for field in ["repository", "ref", "folder", "colour"] {
        assert!(fields.contains(&Some(field)), "{field}: {reply:?}");
    }
    assert_eq!(reply.body["object"], json!({ "kind": "service", "name": "a" }));
    for (document, field) in [
        (json!({ "url": "file:///etc" }), "url"),
        (json!({ "url": "https://git.example/x?private_token=s3cret" }), "url"),
        (json!({ "url": "https://git.example/x", "ca": "/etc/shadow" }), "ca"),
    ] {
        let reply = operator.put("/v1/repositories/a", document.clone()).await;
        assert_eq!(reply.status, 400, "{document}");
        assert!(reply.problem().1.contains(&format!("`{field}`")), "{document}: {reply:?}");
        assert!(!reply.body.to_string().contains("s3cret"), "{reply:?}");
    }
    let long = json!({ "repository": "x".repeat(300 << 10) });
    assert_eq!(operator.put("/v1/services/a", long).await.problem().0, "too-large");
    assert_eq!(operator.put("/v1/services/a", json!({ "repository": "shop" })).await.status, 201);
    let reply = operator.put("/v1/services/b", json!({ "repository": "shop" })).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (429, "limit-reached"));
    assert!(reply.problem().1.contains("`max_services`"), "{reply:?}");
    assert_eq!(node.metric("weir_origin_catalog_limit{kind=\"service\"}").await, 2.0);
    node.stop().await;
}

#[tokio::test]
async fn a_document_with_an_internal_url_is_refused_before_a_poll() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = config(&home, &upstream);
    config.upstreams.private_addresses = false;
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    for url in ["http://127.0.0.1:9/x", "https://169.254.169.254/latest", "git://10.0.0.1/x"] {
        let reply = operator.put("/v1/repositories/a", json!({ "url": url })).await;
        assert_eq!((reply.status.as_u16(), reply.problem().0), (400, "invalid-document"), "{url}");
        assert_eq!(reply.body["errors"][0]["field"], "url");
        assert!(reply.problem().1.contains("`[upstreams] private_addresses`"), "{reply:?}");
        let document = Some(json!({ "url": url }));
        let tried = operator.send(Method::POST, "/v1/repositories/a/dry-run", &[], document).await;
        assert_eq!((tried.status, &tried.body["errors"]), (reply.status, &reply.body["errors"]), "{url}");
    }
    let proxied = json!({ "url": "https://git.example/x", "proxy": "http://192.168.0.1:3128" });
    assert_eq!(operator.put("/v1/repositories/a", proxied).await.body["errors"][0]["field"], "proxy");
    // What a name leads to is seen when it is looked up.
    let named = json!({ "url": "http://localhost:9/x", "poll_interval": "1h" });
    for (name, expected) in [("a", (200, "created")), ("shop", (409, "")), ("a", (200, "created"))] {
        let path = format!("/v1/repositories/{name}/dry-run");
        let tried = operator.send(Method::POST, &path, &[], Some(named.clone())).await;
        assert_eq!((tried.status.as_u16(), tried.body["outcome"].as_str().unwrap_or_default()), expected, "{tried:?}");
    }
    assert_eq!(operator.put("/v1/repositories/a", named).await.status, 201);
    node.stop().await;
}

#[tokio::test]
async fn a_secret_is_sent_only_to_its_host_and_port() {
    let (home, upstream) = (Home::new(), Upstream::small());
    std::fs::create_dir(home.file("git")).unwrap();
    certificates::write(&home.file("git"), &[]).unwrap();
    let server = SmartHttp::start(upstream.bare().parent().unwrap(), Some(&home.file("git")));
    // `ci:pass` in base64.
    server.set_behavior(crate::smart_http::HttpBehavior {
        authorization: Some("Basic Y2k6cGFzcw==".to_owned()),
        ..Default::default()
    });
    let (secrets, port) = (home.file("secrets"), server.address.port());
    std::fs::create_dir_all(secrets.join("localhost")).unwrap();
    std::fs::copy(home.file("git").join("ca.pem"), secrets.join("localhost/ca.pem")).unwrap();
    std::fs::write(secrets.join("localhost/token"), "pass\n").unwrap();
    let mut config = empty_config(&home);
    config.operator_api.secrets_dir = Some(secrets.clone());
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    let document = |host: &str| {
        json!({
            "url": format!("https://{host}:{port}/bare.git"), "poll_interval": "1h",
            "ca": "ca.pem", "username": "ci", "password_file": "token",
        })
    };
    // The same server by another name, and the same host with another port than that of the secret.
    for host in ["127.0.0.1", "localhost"] {
        assert!(operator.put("/v1/repositories/shop", document(host)).await.status.is_success());
        operator.put("/v1/services/shop-prod", json!({ "repository": "shop" })).await;
        let state = node.repository(|state| state.health != Health::Unknown).await;
        assert!(matches!(state.health, Health::Unhealthy { .. }), "{host}: {state:?}");
        assert!(server.take_requests().iter().all(|head| !head.contains("Y2k6cGFzcw==")), "{host}");
    }
    std::fs::rename(secrets.join("localhost"), secrets.join(format!("https_localhost_{port}"))).unwrap();
    assert_eq!(operator.post("/v1/repositories/shop/refresh").await.status, 202);
    node.published(|_| true).await;
    let shown = operator.get("/v1/repositories/shop").await.body;
    assert_eq!(shown["password_file"], "token", "as it was written");
    node.stop().await;
}
