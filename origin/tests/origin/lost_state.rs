//! Records and pages that are gone or damaged: an origin does not take what agents follow for deleted, and says what is to be
//! done.

use std::process::Command;

use crate::operator::Stopped;
use crate::prelude::*;
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
async fn a_new_hub_is_ready_and_denies_unknown_services() {
    let home = Home::new();
    let (node, _) = operated(&home).await;
    assert_eq!(node.get(&path_of(SERVICE)).await.status, 404);
    assert_eq!(node.metric("weir_origin_definitions_missing").await, 0.0);
    assert_eq!(node.admin("/readyz").await, (200, "ready\n".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn after_the_loss_of_the_data_volume_no_service_is_denied_that_an_edge_has() {
    let stopped = stopped().await;
    fs::remove_dir_all(stopped.home.data_dir()).unwrap();
    let (node, operator) = stopped.start().await;
    // The very first request of an edge that has the service.
    let tag = stopped.published.etag();
    let asked = async || node.request(Method::GET, &path_of(SERVICE), &[("if-none-match", &tag)]).await;
    let answer = asked().await;
    assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (503, "definitions-missing"));
    assert!(!answer.header("retry-after").is_empty());
    // From now on neither for others, nor after an automated registration.
    assert_eq!(operator.put("/v1/agents/cluster-1", json!({})).await.status, StatusCode::CREATED);
    assert_not_denied(&node).await;
    assert_eq!(node.metric("weir_origin_definitions_missing").await, 1.0);
    let reasons = node.status().await["reasons"].to_string();
    assert!(reasons.contains("no trace"), "{reasons}");
    // Operators define something: it is a new installation.
    let document = json!({ "url": "https://git.example/blog.git" });
    assert_eq!(operator.put("/v1/repositories/blog", document).await.status, StatusCode::CREATED);
    assert_eq!(asked().await.status, 404);
    assert_eq!(node.metric("weir_origin_definitions_missing").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn a_request_for_a_version_does_not_show_that_an_edge_has_the_service() {
    let stopped = stopped().await;
    fs::remove_dir_all(stopped.home.data_dir()).unwrap();
    let (node, _) = stopped.start().await;
    let path = format!("{}/versions/{}", path_of(SERVICE), stopped.published.publication().digest);
    assert_eq!(node.get(&path).await.status, 404);
    assert_eq!(node.metric("weir_origin_definitions_missing").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn a_service_that_left_the_file_is_denied_to_edges_that_have_it() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let config = || crate::operator::config(&home, &upstream);
    let node = home.start(config()).await;
    let tag = node.published(|_| true).await.etag();
    node.stop().await;
    let mut without = config();
    without.services.clear();
    let node = home.start(without).await;
    let answer = node.request(Method::GET, &path_of(SERVICE), &[("if-none-match", &tag)]).await;
    assert_eq!(answer.status, 404, "{answer:?}");
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
    let (status, reply) = node.admin("/readyz").await;
    assert!(status == 200 && reply.contains("until an operator confirms"), "{reply}");

    let confirmed = operator.post("/v1/repositories/shop/confirm").await;
    assert_eq!((confirmed.status, &confirmed.body["status"]["suspended"]), (StatusCode::OK, &json!(null)));
    let nobody = operator.post("/v1/repositories/none/confirm").await;
    assert_eq!(nobody.status, StatusCode::NOT_FOUND);
    let unpinned = operator.send(Method::DELETE, &format!("{PATH}/pin"), &[], None).await;
    assert_eq!(unpinned.status, StatusCode::OK);
    let generation = stopped.published.publication().generation;
    node.published(|now| now.publication().generation > generation).await;
    assert!(!node.admin("/readyz").await.1.contains("confirms"));
    node.stop().await;
}

/// With a repository that has no services.
async fn stopped_with_blog() -> Stopped {
    let url = json!({ "url": "https://git.example/blog.git" });
    let put = async |operator: &Operator, _: &Node| {
        assert_eq!(operator.put("/v1/repositories/blog", url).await.status, StatusCode::CREATED);
    };
    Box::pin(Stopped::after(put)).await
}

fn path_of(service: &str) -> String {
    format!("/v1/services/{service}")
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

async fn assert_not_denied(node: &Node) {
    for path in [path_of(SERVICE), format!("{}/versions/b3-{}", path_of(SERVICE), "0".repeat(64))] {
        let answer = node.get(&path).await;
        assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (503, "definitions-missing"), "{path}");
        assert!(!answer.header("retry-after").is_empty());
    }
}

#[tokio::test]
async fn while_state_pages_are_lost_unknown_services_are_not_denied() {
    let stopped = stopped_with_blog().await;
    files(&stopped.home.data_dir().join("objects/shop/private"))
        .iter()
        .for_each(|page| fs::write(page, "damaged").unwrap());
    let (node, operator) = stopped.start().await;
    assert_not_denied(&node).await;
    // An operator takes over what is left: then it is known that there is no such service.
    let confirmed = operator.post("/v1/repositories/shop/confirm").await;
    assert_eq!((confirmed.status, confirmed.body["name"].as_str()), (StatusCode::OK, Some("shop")), "{confirmed:?}");
    until(async || node.get(&path_of(SERVICE)).await.status == 404).await;
    node.stop().await;
}

#[tokio::test]
async fn while_a_record_is_gone_unknown_services_are_not_denied() {
    let stopped = stopped_with_blog().await;
    for file in files(&stopped.home.data_dir().join("records/repositories")) {
        if file.file_stem().is_some_and(|name| name == "shop") {
            fs::remove_file(file).unwrap();
        }
    }
    let (node, operator) = stopped.start().await;
    assert_not_denied(&node).await;
    assert!(node.admin("/readyz").await.1.contains("1 repositories have objects but no record"));
    assert_eq!(node.metric("weir_origin_definitions_missing").await, 1.0);
    // Operators define it again.
    assert_eq!(operator.put("/v1/repositories/shop", repository_at(&stopped.server)).await.status, StatusCode::CREATED);
    assert_eq!(node.get(&path_of(SERVICE)).await.status, 404);
    node.stop().await;
}

#[tokio::test]
async fn verify_counts_no_deleted_repositories() {
    let delete = async |operator: &Operator, _: &Node| {
        let blog = json!({ "url": "https://git.example/blog.git" });
        assert_eq!(operator.put("/v1/repositories/blog", blog).await.status, StatusCode::CREATED);
        assert_eq!(operator.delete("/v1/repositories/blog").await.status, StatusCode::NO_CONTENT);
    };
    let stopped = Stopped::after(delete).await;
    let config = stopped.home.write_config("");
    let program = env!("CARGO_BIN_EXE_weir-origin");
    let verified = Command::new(program).args(["verify", "--json", "--config"]).arg(&config).output().unwrap();
    let report: Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert_eq!((&report["repositories"], &report["versions"]), (&json!(1), &json!(1)), "{report}");
}

#[tokio::test]
async fn verify_refuses_a_missing_data_directory() {
    let home = Home::new();
    let config = home.write_config("");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"data\"", "\"mistyped\"")).unwrap();
    let program = env!("CARGO_BIN_EXE_weir-origin");
    let verified = Command::new(program).arg("verify").arg("--config").arg(&config).output().unwrap();
    let reply = String::from_utf8(verified.stderr).unwrap();
    assert!(verified.status.code() == Some(8) && reply.contains("mistyped/records does not exist"), "{reply}");
    assert!(!home.file("mistyped").exists());
}
