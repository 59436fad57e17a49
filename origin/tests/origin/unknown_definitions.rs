//! Services that operators defined in what cannot be read: nobody is told that they do not exist.

use std::fs;
use std::path::Path;
use std::process::Command;

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::node::{Home, Node, SERVICE, in_time};
use crate::operator::{Operator, Stopped, repository_at};

/// With a repository that has no services.
async fn stopped() -> Stopped {
    let url = json!({ "url": "https://git.example/blog.git" });
    let put = async |operator: &Operator, _: &Node| {
        assert_eq!(operator.put("/v1/repositories/blog", url).await.status, StatusCode::CREATED);
    };
    Stopped::after(put).await
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
    let stopped = stopped().await;
    files(&stopped.home.data_dir().join("objects/shop/private"))
        .iter()
        .for_each(|page| fs::write(page, "damaged").unwrap());
    let (node, operator) = stopped.start().await;
    assert_not_denied(&node).await;
    // An operator takes over what is left: then it is known that there is no such service.
    let confirmed = operator.send(Method::POST, "/v1/repositories/shop/confirm", &[], None).await;
    assert_eq!((confirmed.status, confirmed.body["name"].as_str()), (StatusCode::OK, Some("shop")), "{confirmed:?}");
    let denied = async {
        while node.get(&path_of(SERVICE)).await.status != 404 {
            tokio::task::yield_now().await;
        }
    };
    in_time(denied).await;
    node.stop().await;
}

#[tokio::test]
async fn while_a_record_is_gone_unknown_services_are_not_denied() {
    let stopped = stopped().await;
    for file in files(&stopped.home.data_dir().join("records/repositories")) {
        if file.file_stem().is_some_and(|name| name == "shop") {
            fs::remove_file(file).unwrap();
        }
    }
    let (node, operator) = stopped.start().await;
    assert_not_denied(&node).await;
    assert!(node.admin("/readyz").await.1.contains("1 repositories have objects and no record"));
    assert_eq!(node.metric("weir_origin_definitions_missing").await, 1.0);
    // Operators define it again.
    assert_eq!(operator.put("/v1/repositories/shop", repository_at(&stopped.server)).await.status, StatusCode::CREATED);
    assert_eq!(node.get(&path_of(SERVICE)).await.status, 404);
    node.stop().await;
}

#[tokio::test]
async fn a_data_directory_that_is_not_there_is_not_verified_and_not_created() {
    let home = Home::new();
    let config = home.write_config("");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"data\"", "\"mistyped\"")).unwrap();
    let program = env!("CARGO_BIN_EXE_weir-origin");
    let verified = Command::new(program).arg("verify").arg("--config").arg(&config).output().unwrap();
    let told = String::from_utf8(verified.stderr).unwrap();
    assert!(verified.status.code() == Some(8) && told.contains("mistyped/records does not exist"), "{told}");
    assert!(!home.file("mistyped").exists());
}
