//! Definitions of operators at run time: published, changed, moved and deleted, alongside those of the file.

use crate::prelude::*;

#[tokio::test]
async fn definitions_of_operators_are_published_changed_and_survive_a_restart() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = serve(&upstream);
    let node = home.start(empty_config(&home)).await;
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
    let status = &changed.body["status"];
    let of_before = status["published"]["digest"] == json!(first.publication().digest);
    assert_eq!(status["condition"], if of_before { "pending" } else { "following" }, "{status}");
    let second = node.published(|new| new.publication().digest != first.publication().digest).await;
    assert_eq!(names(&node.tarball(&second).await), ["readme.md"]);
    assert!(second.publication().generation > first.publication().generation);
    // Sent again it was made from a version that is not the current one.
    let lost = operator.put("/v1/services/shop-prod", moved).await;
    assert_eq!((lost.status.as_u16(), lost.problem().0), (409, "lost-update"));
    let stale = [("if-match", created.etag.as_str())];
    let lost = operator.send(Method::PUT, "/v1/services/shop-prod", &stale, Some(document.clone())).await;
    assert_eq!((lost.status.as_u16(), lost.problem().0), (412, "precondition-failed"));
    let there =
        operator.send(Method::PUT, "/v1/services/shop-prod", &[("if-none-match", "*")], Some(document.clone())).await;
    assert_eq!(there.status, 412);
    // A page of another site had the operator's browser send it, with the operator's certificate.
    for (headers, status) in [
        ([("origin", "https://evil.example")], 403),
        ([("sec-fetch-site", "cross-site")], 403),
        ([("content-type", "text/plain")], 415),
    ] {
        let forged = operator.send(Method::PUT, "/v1/services/shop-prod", &headers, Some(document.clone())).await;
        assert_eq!(forged.status, status, "{headers:?}");
    }
    let current = operator.get("/v1/services/shop-prod").await;
    assert_eq!(current.body["version"], changed.body["version"], "nothing was changed");
    node.stop().await;

    let node = home.start(empty_config(&home)).await;
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
async fn an_edit_of_a_service_requests_nothing_that_the_mirror_has() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = serve(&upstream);
    let (node, operator) = operated(&home).await;
    operator.put("/v1/repositories/shop", repository_at(&server)).await;
    let put = async |folder: &str, before: &str| {
        operator.put("/v1/services/shop-prod", json!({ "repository": "shop", "folder": folder })).await;
        node.published(|new| new.publication().digest.to_string() != before).await.publication().digest.to_string()
    };
    let first = put("deploy", "").await;
    node.poll().await;
    // No triggered poll is due any more.
    let is_at_rest = |state: &RepositoryState| {
        state.next_poll.is_some_and(|next| next > SystemTime::now() + Duration::from_secs(1800))
    };
    let before = node.repository(is_at_rest).await;
    // What follows from the first edit is done before the second one.
    let second = put("docs", &first).await;
    put("deploy", &second).await;
    let after = node.repository(|state| state.next_poll.is_some()).await;
    assert_eq!(after.applied_polls, before.applied_polls);
    assert!(is_at_rest(&after), "{after:?}");
    node.stop().await;
}

#[tokio::test]
async fn a_deleted_service_is_a_tombstone_and_returns_with_a_higher_generation() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = serve(&upstream);
    let (node, operator) = operated(&home).await;
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
    // A new reader receives it too.
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
    until(async || !mirror.exists() && !node.admin("/metrics").await.1.contains("repository=\"shop\"")).await;
    // And at once again, while the one before may still be ending.
    for _ in 0..3 {
        assert_eq!(operator.put("/v1/repositories/shop", repository_at(&server)).await.status, 201);
        assert_eq!(operator.put("/v1/services/shop-prod", document.clone()).await.status, 201);
        node.published(|_| true).await;
        assert_eq!(operator.delete("/v1/repositories/shop?cascade=true").await.status, 204);
    }
    node.stop().await;
    let node = home.start(empty_config(&home)).await;
    assert_eq!(node.get("/v1/services/shop-prod").await.status, 404);
    node.stop().await;
}

#[tokio::test]
async fn a_moved_service_keeps_its_version_until_the_next_publication() {
    let (home, upstream, other) = (Home::new(), Upstream::small(), Upstream::small());
    other.push("deploy/other.yaml", b"x");
    let (server, slow) = (serve(&upstream), serve(&other));
    let (node, operator) = operated(&home).await;
    operator.put("/v1/repositories/shop", repository_at(&server)).await;
    operator.put("/v1/services/shop-prod", json!({ "repository": "shop", "folder": "deploy" })).await;
    let first = node.published(|_| true).await;
    slow.set_behavior(crate::smart_http::HttpBehavior { status: Some(503), ..Default::default() });
    operator.put("/v1/repositories/other", repository_at(&slow)).await;
    let moved = operator.put("/v1/services/shop-prod", json!({ "repository": "other", "folder": "deploy" })).await;
    assert_eq!(moved.status, 200);
    assert_eq!(node.descriptor().await.bytes(), first.bytes());
    slow.set_behavior(crate::smart_http::HttpBehavior::default());
    // Another way to ask is another agent of the same mirror.
    let mut document = repository_at(&slow);
    document["redirects"] = "none".into();
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
        let repository = format!("[[repository]]\nname = \"shop\"\nurl = \"{}\"\n", upstream.url());
        home.write_config(&format!("{repository}poll_interval = \"1h\"\n{services}"));
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
