//! What a service would hold, without publishing it.

use crate::operator::Reply;
use crate::prelude::*;
use crate::smart_http::HttpBehavior;

#[tokio::test]
async fn a_dry_run_reports_the_publication_and_publishes_nothing() {
    let (home, upstream) = (Home::new(), Upstream::small());
    upstream.push("deploy/bin/run", b"#!/bin/sh\n");
    upstream.push("deploy/notes.txt", b"notes");
    let node = home.start(config(&home, &upstream)).await;
    let first = node.published(|_| true).await;
    node.repository(|state| state.applied_polls > 0).await;
    let operator = Operator::of(&home, &node);
    let post = async |path: &str, body: Option<Value>| operator.send(Method::POST, path, &[], body).await;
    let reply = post("/v1/services/shop-prod/dry-run", None).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let paths = |reply: &Reply| -> Vec<String> {
        let entries = reply.body["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(paths(&reply), names(&node.tarball(&first).await), "what is published");
    assert_eq!(reply.body["commit"], commit_of(&first));
    assert_eq!(reply.body["revision_id"], first.publication().revision_id.to_string());
    assert_eq!(reply.body["entries"][0], json!({ "path": "app.yaml", "kind": "file", "mode": "0644", "bytes": 12 }));

    // In pages, of one commit, whatever is pushed meanwhile.
    let page = post("/v1/services/shop-prod/dry-run?limit=3", None).await;
    upstream.push("deploy/a", b"new");
    node.poll().await;
    let next = page.body["next_page"].as_str().unwrap();
    let rest = post(&format!("/v1/services/shop-prod/dry-run?limit=3&page={next}"), None).await;
    assert_eq!([paths(&page), paths(&rest)].concat(), paths(&reply));
    assert_eq!((&rest.body["next_page"], &rest.body["entries_total"]), (&Value::Null, &json!(4)));

    // Not with the page of another document, or one that somebody made up.
    let other = json!({ "repository": "shop", "ref": "main", "folder": "docs" });
    let reply = post(&format!("/v1/services/shop-prod/dry-run?page={next}"), Some(other)).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (400, "malformed-request"));

    // A document that is not stored.
    let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy", "exclude": ["*.txt"] });
    let reply = post("/v1/services/new/dry-run", Some(document)).await;
    assert_eq!(paths(&reply), ["a", "app.yaml", "bin/", "bin/run"]);
    assert_eq!(operator.get("/v1/services/new").await.status, 404);
    assert_eq!(post("/v1/services/new/dry-run", None).await.status, 404);
    // Files of LFS are listed as what their pointers say, without being fetched, or as left out.
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 77777\n", "a".repeat(64));
    upstream.push("deploy/.gitattributes", b"*.bin filter=lfs\n");
    upstream.push("deploy/model.bin", pointer.as_bytes());
    node.poll().await;
    for (lfs, omitted, bytes) in [(false, 1, None), (true, 0, Some(77777))] {
        let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy", "lfs": lfs });
        let reply = post("/v1/services/new/dry-run", Some(document)).await;
        assert_eq!(reply.body["omitted_total"], omitted, "{reply:?}");
        let model = reply.body["entries"].as_array().unwrap().iter().find(|entry| entry["path"] == "model.bin");
        assert_eq!(model.and_then(|entry| entry["bytes"].as_u64()), bytes);
    }
    let reply = post("/v1/services/new/dry-run", Some(json!({ "repository": "shop", "folder": "gone" }))).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (409, "not-publishable"));
    let reply = post("/v1/services/new/dry-run", Some(json!({ "repository": "none" }))).await;
    assert_eq!(reply.problem().0, "no-such-repository");
    node.stop().await;
}

#[tokio::test]
async fn nothing_is_reported_of_the_upstream_before_the_first_clone() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = serve(&upstream);
    server.set_behavior(HttpBehavior { silent_after: Some(0), ..HttpBehavior::default() });
    let (node, operator) = operated(&home).await;
    let mut repository = repository_at(&server);
    repository["stall_timeout"] = "6s".into();
    operator.put("/v1/repositories/shop", repository).await;
    node.repository(|state| matches!(&state.phase, Phase::Fetching { progress } if progress.phase == "listing")).await;
    let service = async || operator.get("/v1/services/shop-prod").await.body["status"].clone();
    for reference in [json!("main"), Value::Null] {
        let mut document = json!({ "repository": "shop", "folder": "deploy" });
        if !reference.is_null() {
            document["ref"] = reference;
        }
        operator.put("/v1/services/shop-prod", document).await;
        let reply = operator.post("/v1/services/shop-prod/dry-run").await;
        assert_eq!((reply.status.as_u16(), reply.problem().0), (503, "not-mirrored"), "{reply:?}");
        assert!(reply.problem().1.contains("first clone") && reply.body["retryable"] == true, "{reply:?}");
        let status = service().await;
        assert_eq!((&status["condition"], &status["failure"]), (&json!("pending"), &Value::Null), "{status}");
    }

    node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    let reply = operator.post("/v1/services/shop-prod/dry-run").await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (503, "not-mirrored"), "{reply:?}");
    assert!(reply.problem().1.contains("could not be cloned yet (step: list refs)"), "{reply:?}");
    let failure = service().await["failure"].clone();
    assert_eq!((&failure["of"], &failure["step"]), (&json!("repository"), &json!("list refs")), "{failure}");

    server.set_behavior(HttpBehavior::default());
    node.published(|_| true).await;
    let reply = operator.post("/v1/services/shop-prod/dry-run").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    node.stop().await;
}

#[tokio::test]
async fn the_pages_of_a_dry_run_are_of_one_commit() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let old = upstream.push("deploy/of-the-request", b"x");
    upstream.git(&["push", "--quiet", "origin", "HEAD:refs/pull/7/head"]);
    upstream.git(&["reset", "--quiet", "--hard", "HEAD~"]);
    upstream.git(&["push", "--quiet", "--force", "origin", "HEAD"]);
    let mut config = config(&home, &upstream);
    config.services[0].followed_ref = "refs/pull/7/head".parse().unwrap();
    config.limits.max_tarball = bytesize::ByteSize(4000);
    let node = home.start(config).await;
    node.published(|_| true).await;
    node.repository(|state| state.applied_polls > 0).await;
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
    for wrong in ["limit=0", "limit=10001", "all=1", "page=7", "page=main.3"] {
        assert_eq!(post(&format!("{path}?{wrong}"), None).await.status, 400, "{wrong}");
    }
    let by_id = post(path, Some(json!({ "repository": "shop", "ref": old }))).await;
    assert_eq!(by_id.problem().0, "not-publishable");

    // What would be too large is not publishable either.
    upstream.push("deploy/large", &[b'x'; 3000]);
    node.poll().await;
    let reply = post(path, Some(json!({ "repository": "shop", "ref": "main" }))).await;
    assert_eq!(reply.problem().0, "not-publishable");
    assert!(reply.problem().1.contains("more than 4000 bytes"), "{reply:?}");
    let unknown = post(path, Some(json!({ "repository": "shop", "ref": "refs/pull/8/head" }))).await;
    assert!(unknown.problem().1.contains("for the first time"), "{unknown:?}");
    node.stop().await;
}
