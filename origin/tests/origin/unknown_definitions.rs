//! Services that operators defined in what cannot be read: nobody is told that they do not exist.

use std::fs;
use std::path::Path;
use std::process::Command;

use reqwest::{Method, StatusCode};
use serde_json::json;
use weir_origin::config::Config;

use crate::node::{Home, Node, SERVICE, in_time};
use crate::operator::{Operator, empty_config, repository_at, serve};
use crate::smart_http::SmartHttp;
use crate::upstream::Upstream;

/// A stopped origin with a published service that operators alone defined, and a repository without services.
async fn stopped() -> (Home, Config, Upstream, SmartHttp) {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (server, config) = (serve(&upstream), empty_config(&home, &upstream));
    let node = home.start(config.clone()).await;
    let operator = Operator::of(&home, &node);
    for repository in ["shop", "blog"] {
        let path = format!("/v1/repositories/{repository}");
        assert_eq!(operator.put(&path, repository_at(&server)).await.status, StatusCode::CREATED);
    }
    let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy" });
    assert_eq!(operator.put(&path_of(SERVICE), document).await.status, StatusCode::CREATED);
    node.published(|_| true).await;
    node.stop().await;
    (home, config, upstream, server)
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
    let (home, config, _upstream, _server) = stopped().await;
    files(&home.data_dir().join("objects/shop/private")).iter().for_each(|page| fs::write(page, "damaged").unwrap());
    let node = home.start(config).await;
    assert_not_denied(&node).await;
    // An operator takes over what is left: then it is known that there is no such service.
    let operator = Operator::of(&home, &node);
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
    let (home, config, _upstream, server) = stopped().await;
    for file in files(&home.data_dir().join("records/repositories")) {
        if file.file_stem().is_some_and(|name| name == "shop") {
            fs::remove_file(file).unwrap();
        }
    }
    let node = home.start(config).await;
    assert_not_denied(&node).await;
    assert!(node.admin("/readyz").await.1.contains("1 repositories have objects and no record"));
    assert_eq!(node.metric("weir_origin_definitions_missing").await, 1.0);
    // Operators define it again.
    let operator = Operator::of(&home, &node);
    assert_eq!(operator.put("/v1/repositories/shop", repository_at(&server)).await.status, StatusCode::CREATED);
    assert_eq!(node.get(&path_of(SERVICE)).await.status, 404);
    node.stop().await;
}

#[tokio::test]
async fn a_data_directory_that_is_not_there_is_not_verified_and_not_created() {
    let home = Home::new();
    let config = home.file("origin.toml");
    let text = "name = \"origin-1\"\ndata_dir = \"mistyped\"\nlisten = \"127.0.0.1:0\"\n\
                tls = { certificate = \"origin.pem\", key = \"origin.key\", client_ca = \"ca.pem\" }\n";
    fs::write(&config, text).unwrap();
    let program = env!("CARGO_BIN_EXE_weir-origin");
    let verified = Command::new(program).arg("verify").arg("--config").arg(&config).output().unwrap();
    let told = String::from_utf8(verified.stderr).unwrap();
    assert!(verified.status.code() == Some(8) && told.contains("mistyped/records does not exist"), "{told}");
    assert!(!home.file("mistyped").exists());
}
