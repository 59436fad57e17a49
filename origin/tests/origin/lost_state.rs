//! Records and pages that are gone or damaged: an origin does not take what agents follow for deleted, and says what is to be
//! done.

use std::fs;

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::node::{Node, SERVICE, flip_a_bit};
use crate::operator::{Operator, Stopped};
use crate::stored_state::record_file;

const PATH: &str = "/v1/services/shop-prod";

/// Pinned before it stopped.
async fn stopped() -> Stopped {
    let pin = async |operator: &Operator, _: &Node| {
        assert_eq!(operator.put(&format!("{PATH}/pin"), json!({})).await.status, StatusCode::OK);
    };
    Stopped::after(pin).await
}

#[tokio::test]
async fn after_the_loss_of_the_data_volume_unknown_services_are_not_denied() {
    let stopped = stopped().await;
    fs::remove_dir_all(stopped.home.data_dir()).unwrap();
    let (node, operator) = stopped.start().await;
    let answer = node.get(&format!("/v1/services/{SERVICE}")).await;
    assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (503, "definitions-missing"));
    assert!(!answer.header("retry-after").is_empty());
    assert_eq!(node.metric("weir_origin_definitions_missing").await, 1.0);
    let reasons = node.status().await["reasons"].to_string();
    assert!(reasons.contains("the store is new"), "{reasons}");
    // Operators define something: it is a new installation.
    let document = json!({ "url": "https://git.example/blog.git" });
    assert_eq!(operator.put("/v1/repositories/blog", document).await.status, StatusCode::CREATED);
    assert_eq!(node.get(&format!("/v1/services/{SERVICE}")).await.status, 404);
    assert_eq!(node.metric("weir_origin_definitions_missing").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn a_repository_whose_record_is_damaged_publishes_nothing_until_an_operator_confirms() {
    let stopped = stopped().await;
    flip_a_bit(&record_file(&stopped.home));
    stopped.upstream.push("deploy/app.yaml", b"replicas: 9\n");
    let (node, operator) = stopped.start().await;
    node.poll().await;
    // What the copy before had: the service was published, and may not have been pinned yet.
    assert_eq!(node.descriptor().await.publication(), stopped.published.publication());
    node.tarball(&stopped.published).await;
    let shown = operator.get("/v1/repositories/shop").await.body;
    assert!(shown["status"]["suspended"]["reason"].as_str().unwrap().contains("record"), "{shown}");
    let (status, told) = node.admin("/readyz").await;
    assert!(status == 200 && told.contains("until an operator confirms"), "{told}");

    let confirmed = operator.send(Method::POST, "/v1/repositories/shop/confirm", &[], None).await;
    assert_eq!((confirmed.status, &confirmed.body["status"]["suspended"]), (StatusCode::OK, &json!(null)));
    let nobody = operator.send(Method::POST, "/v1/repositories/none/confirm", &[], None).await;
    assert_eq!(nobody.status, StatusCode::NOT_FOUND);
    let unpinned = operator.send(Method::DELETE, &format!("{PATH}/pin"), &[], None).await;
    assert_eq!(unpinned.status, StatusCode::OK);
    let generation = stopped.published.publication().generation;
    node.published(|now| now.publication().generation > generation).await;
    assert!(!node.admin("/readyz").await.1.contains("confirms"));
    node.stop().await;
}
