//! Databases that are gone, empty or damaged: an origin does not take what agents follow for deleted, and says which file
//! it is and what is to be done.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use reqwest::StatusCode;
use serde_json::json;
use weir_origin::config::Config;
use weir_origin::fsck::{self, Fault, Options, Outcome};

use crate::node::{Home, SERVICE};
use crate::operator::{self, Operator, empty_config, repository_at, serve};
use crate::smart_http::SmartHttp;
use crate::upstream::Upstream;

/// A stopped origin with a published service that an operator defined.
struct Stopped {
    home: Home,
    config: Config,
    _served: Option<(Upstream, SmartHttp)>,
}

impl Stopped {
    async fn new() -> Self {
        let (home, upstream) = (Home::new(), Upstream::small());
        let (server, config) = (serve(&upstream), empty_config(&home, &upstream));
        let node = home.start(config.clone()).await;
        let operator = Operator::of(&home, &node);
        assert_eq!(operator.put("/v1/repositories/shop", repository_at(&server)).await.status, StatusCode::CREATED);
        let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy" });
        assert_eq!(operator.put(&format!("/v1/services/{SERVICE}"), document).await.status, StatusCode::CREATED);
        node.published(|_| true).await;
        node.stop().await;
        Self { home, config, _served: Some((upstream, server)) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.data_dir().join(name)
    }

    /// Why it does not start. It names the file.
    async fn refused(&self, file: &str) -> String {
        let error = weir_origin::start(self.config.clone()).await.map(drop).unwrap_err();
        let told = format!("{error:#}");
        assert!(told.contains(&self.file(file).display().to_string()), "{told}");
        told
    }

    /// The status of the service in a running origin.
    async fn served(&self) -> StatusCode {
        let node = self.home.start(self.config.clone()).await;
        let status = node.get(&format!("/v1/services/{SERVICE}")).await.status;
        node.stop().await;
        status
    }

    fn new_catalog(&self) -> (Option<i32>, String) {
        self.run(&["new-catalog", "--config"])
    }

    fn check_config(&self) -> (Option<i32>, String) {
        self.run(&["--check-config", "--config"])
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        fs::write(
            self.home.file("origin.toml"),
            "name = \"origin-1\"\nlisten = \"127.0.0.1:0\"\ndata_dir = \"data\"\n[tls]\ncertificate = \"origin.pem\"\n\
             key = \"origin.key\"\nclient_ca = \"ca.pem\"\n",
        )
        .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-origin"));
        let run = command.args(arguments).arg(self.home.file("origin.toml")).output().unwrap();
        (run.status.code(), String::from_utf8(run.stderr).unwrap())
    }
}

#[tokio::test]
async fn what_operators_defined_is_never_taken_for_deleted_because_its_file_is_gone_or_empty() {
    let stopped = Stopped::new().await;
    let catalog = stopped.file("catalog.redb");
    let documents = fs::read(&catalog).unwrap();
    for is_there in [true, false] {
        fs::remove_file(&catalog).unwrap();
        if is_there {
            fs::write(&catalog, "").unwrap();
        }
        for _ in 0..2 {
            let told = stopped.refused("catalog.redb").await;
            assert!(told.contains("Put back a copy") && told.contains("`weir-origin new-catalog"), "{told}");
        }
        let (code, told) = stopped.check_config();
        assert!(code == Some(2) && told.contains("catalog.redb is "), "{told}");
        for mend in [false, true] {
            let report = fsck::run(&stopped.config, Options { mend, threads: 1 }, &|_| ()).unwrap();
            let found = report.found.iter().find(|found| found.fault == Fault::Database).expect("it is lost");
            assert_eq!((found.object.as_str(), found.outcome, report.exit_code()), ("catalog.redb", Outcome::Left, 4));
        }
        fs::write(&catalog, &documents).unwrap();
        assert_eq!(stopped.served().await, StatusCode::OK);
    }
    // One that is there is given up by nobody.
    let (code, told) = stopped.new_catalog();
    assert!(code == Some(1) && told.contains("move it away"), "{told}");
    assert_eq!(stopped.served().await, StatusCode::OK);
    for is_there in [true, false] {
        fs::remove_file(&catalog).unwrap();
        if is_there {
            fs::write(&catalog, "").unwrap();
        }
        let (code, told) = stopped.new_catalog();
        assert!(code == Some(0) && told.contains("withdrawn"), "{told}");
    }
    assert_eq!(stopped.served().await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_database_that_cannot_be_read_is_named_with_the_way_out() {
    let stopped = Stopped::new().await;
    for (name, way_out) in [("state.redb", "fsck --config FILE --mend"), ("catalog.redb", "ut back a copy")] {
        let whole = fs::read(stopped.file(name)).unwrap();
        for damaged in [b"no database".to_vec(), whole[..whole.len() / 2].to_vec(), Vec::new()] {
            fs::write(stopped.file(name), &damaged).unwrap();
            let told = stopped.refused(name).await;
            assert!(told.contains(way_out), "{told}");
            assert_eq!(fs::read(stopped.file(name)).unwrap(), damaged, "nobody wrote to it");
        }
        fs::write(stopped.file(name), &whole).unwrap();
    }
    assert_eq!(stopped.served().await, StatusCode::OK);
    // An empty one is mended as any that is damaged.
    fs::write(stopped.file("state.redb"), "").unwrap();
    let report = fsck::run(&stopped.config, Options { mend: true, threads: 1 }, &|_| ()).unwrap();
    assert!(report.found.iter().any(|found| found.object == "state.redb" && found.outcome != Outcome::Left));
    let node = stopped.home.start(stopped.config.clone()).await;
    node.published(|_| true).await;
    node.stop().await;
}

#[tokio::test]
async fn a_repository_that_leaves_the_file_is_missed_by_operators_services_and_that_is_told() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(operator::config(&home, &upstream)).await;
    let operator = Operator::of(&home, &node);
    let document = json!({ "repository": "shop", "ref": "main", "folder": "docs" });
    assert_eq!(operator.put("/v1/services/mine", document).await.status, StatusCode::CREATED);
    node.stop().await;
    let stopped = Stopped { config: operator::config(&home, &upstream), _served: None, home };
    let (code, told) = stopped.check_config();
    assert_eq!(code, Some(0), "it starts");
    assert!(told.contains("service mine") && told.contains("repository shop"), "{told}");
    assert!(!told.contains(SERVICE), "it left the file as well: {told}");
}
