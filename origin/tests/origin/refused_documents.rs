//! Stored documents that the rules refuse by now: the rest of the fleet is served, and so is what was published by them,
//! until an operator mends them.

use std::process::Command;

use crate::operator::Stopped;
use crate::prelude::*;
use crate::stored_state::{replace_repository, replace_service};

const DOCS: &str = "docs";

/// What a service is at can be had as it was.
async fn serves(node: &Node, descriptor: &Descriptor) {
    let answer = node.get(&format!("/v1/services/{}", descriptor.publication().service)).await;
    assert_eq!((answer.status.as_u16(), &answer.body), (200, descriptor.bytes()));
    assert_eq!(node.get(&object_path(&object_of(descriptor))).await.status, 200);
}

fn of<'a>(status: &'a Value, kind: &str, name: &str) -> &'a Value {
    status[kind].as_array().unwrap().iter().find(|each| each["name"] == name).unwrap()
}

/// A stopped origin that published two services, and the other one.
async fn stopped() -> (Stopped, Arc<Descriptor>) {
    let mut docs = None;
    let put = async |operator: &Operator, node: &Node| {
        let document = json!({ "repository": "shop", "ref": "main", "folder": "docs" });
        assert_eq!(operator.put("/v1/services/docs", document).await.status, 201);
        docs = Some(node.published_of(DOCS, |_| true).await);
    };
    let stopped = Stopped::after(put).await;
    (stopped, docs.unwrap())
}

#[tokio::test]
async fn a_service_with_a_refused_document_is_served_unchanged_until_it_is_fixed() {
    let (stopped, docs) = stopped().await;
    let stored = json!({ "name": DOCS, "repository": "shop", "ref": "refs/replace/4b825dc6", "folder": "docs" });
    replace_service(&stopped.home, DOCS, &stored);
    let (node, operator) = stopped.start().await;
    stopped.upstream.push("docs/new", b"new\n");
    stopped.upstream.push("deploy/new", b"new\n");
    node.poll().await;
    node.published(|now| now.publication().digest != stopped.published.publication().digest).await;
    serves(&node, &docs).await;
    assert_eq!(node.admin("/readyz").await.0, 200);

    let status = node.status().await;
    let shown = of(&status, "services", DOCS);
    assert_eq!((&shown["condition"], &shown["failure"]["step"]), (&json!("unhealthy"), &json!("document")));
    assert!(shown["failure"]["reason"].as_str().unwrap().contains("refs/replace/"), "{shown}");
    assert_eq!(shown["ref"], "refs/replace/4b825dc6");
    assert_eq!(shown["published"]["generation"], docs.publication().generation);
    assert_eq!(node.metric("weir_origin_catalog_refused{kind=\"service\"}").await, 1.0);
    assert_eq!(node.metric("weir_origin_services_unhealthy").await, 1.0);
    let reply = operator.get("/v1/services/docs").await;
    assert_eq!((reply.status, &reply.body["ref"]), (StatusCode::OK, &stored["ref"]));
    assert_eq!(reply.body["status"]["failure"]["step"], "document");
    let listed = operator.get("/v1/services?repository=shop").await;
    assert_eq!(listed.body["services"].as_array().unwrap().len(), 2);
    let dry_run = operator.post("/v1/services/docs/dry-run").await;
    assert!(dry_run.problem().1.contains("refs/replace/"), "{dry_run:?}");

    // It is held on to and let go like any other.
    for (method, condition) in [(Method::PUT, "pinned"), (Method::DELETE, "unhealthy")] {
        let reply = operator.send(method, "/v1/services/docs/pin", &[], None).await;
        assert_eq!(
            (reply.status, &reply.body["status"]["condition"]),
            (StatusCode::OK, &json!(condition)),
            "{reply:?}"
        );
    }

    // A repository goes with all of its services, or not at all.
    let refused = operator.delete("/v1/repositories/shop").await;
    assert!(refused.problem().1.contains(DOCS), "{refused:?}");
    let document = json!({ "repository": "shop", "ref": "main", "folder": "docs" });
    let lost =
        operator.send(Method::PUT, "/v1/services/docs", &[("if-match", "\"other\"")], Some(document.clone())).await;
    assert_eq!(lost.status, StatusCode::PRECONDITION_FAILED);
    let etag = operator.get("/v1/services/docs").await.etag;
    let mended = operator.send(Method::PUT, "/v1/services/docs", &[("if-match", &etag)], Some(document)).await;
    assert_eq!(mended.status, StatusCode::OK, "{mended:?}");
    node.published_of(DOCS, |now| now.publication().digest != docs.publication().digest).await;
    assert_eq!(node.metric("weir_origin_catalog_refused{kind=\"service\"}").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn a_repository_with_a_refused_document_delays_no_other() {
    let (stopped, docs) = stopped().await;
    let stored = json!({ "name": "shop", "url": stopped.server.url("bare.git"), "of_a_later_version": 1 });
    replace_repository(&stopped.home, &stored);
    let (node, operator) = stopped.start().await;
    let other = json!({ "repository": "blog", "ref": "main", "folder": "deploy" });
    assert_eq!(operator.put("/v1/repositories/blog", repository_at(&stopped.server)).await.status, 201);
    assert_eq!(operator.put("/v1/services/blog", other).await.status, 201);
    node.published_of("blog", |_| true).await;
    for descriptor in [&stopped.published, &*docs] {
        serves(&node, descriptor).await;
    }
    let status = node.status().await;
    let shown = of(&status, "repositories", "shop");
    assert_eq!((&shown["health"], &shown["failure"]["step"]), (&json!("unhealthy"), &json!("document")));
    for shown in [shown, of(&status, "services", DOCS)] {
        assert!(shown["failure"]["reason"].as_str().unwrap().contains("of_a_later_version"), "{shown}");
    }
    assert_eq!(node.metric("weir_origin_catalog_refused{kind=\"repository\"}").await, 1.0);
    let reply = operator.get("/v1/repositories/shop").await;
    assert_eq!(reply.body["of_a_later_version"], 1);
    assert_eq!(reply.body["status"]["failure"], shown["failure"]);
    assert_eq!(operator.put("/v1/repositories/shop", repository_at(&stopped.server)).await.status, 200);
    stopped.upstream.push("docs/new", b"new\n");
    node.poll().await;
    let now = operator.get("/v1/services/docs").await.body;
    assert_ne!(now["status"]["published"]["generation"], docs.publication().generation, "{now}");
    assert_eq!(now["status"]["condition"], "following");
    node.stop().await;
}

#[tokio::test]
async fn a_malformed_document_is_listed_and_can_be_deleted() {
    let (stopped, docs) = stopped().await;
    replace_service(&stopped.home, DOCS, &json!(7));
    let (node, operator) = stopped.start().await;
    serves(&node, &stopped.published).await;
    serves(&node, &docs).await;
    assert_eq!(node.metric("weir_origin_catalog_refused{kind=\"service\"}").await, 1.0);
    let path = format!("/v1/services/{DOCS}");
    let reply = operator.get(&path).await;
    assert_eq!((&reply.body["stored"], &reply.body["status"]["condition"]), (&json!(7), &json!("unhealthy")));
    assert_eq!(of(&node.status().await, "services", DOCS)["condition"], "unhealthy");
    let refused = operator.delete("/v1/repositories/shop").await;
    assert!(refused.problem().1.contains(DOCS), "it is of the repository that stores it: {refused:?}");
    assert_eq!(operator.delete(&path).await.status, StatusCode::NO_CONTENT);
    assert_eq!(operator.get(&path).await.status, StatusCode::NOT_FOUND);
    assert_eq!(node.get(&path).await.status, 404);
    assert_eq!(node.metric("weir_origin_catalog_refused{kind=\"service\"}").await, 0.0);
    node.stop().await;
    let (node, operator) = stopped.start().await;
    assert!(node.running.service(&DOCS.parse().unwrap()).is_none());
    assert_eq!(operator.get(&path).await.status, StatusCode::NOT_FOUND, "its deletion is durable");
    serves(&node, &stopped.published).await;
    node.stop().await;
}

#[tokio::test]
async fn check_config_names_refused_documents_while_an_origin_runs() {
    let (stopped, _) = stopped().await;
    let refused = json!({ "name": DOCS, "repository": "shop", "ref": "refs/replace/x" });
    replace_service(&stopped.home, DOCS, &refused);
    let file = stopped.home.write_config("");
    let check = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_weir-origin"));
        let output = program.arg("--config").arg(&file).arg("--check-config").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let (node, operator) = stopped.start().await;
    let reply = check();
    assert!(reply.starts_with("weir-origin: service docs: ") && reply.contains("refs/replace/"), "{reply}");
    assert_eq!(reply.lines().count(), 1, "{reply}");
    assert_eq!(operator.delete("/v1/services/docs").await.status, StatusCode::NO_CONTENT);
    assert_eq!(check(), "");
    node.stop().await;
}
