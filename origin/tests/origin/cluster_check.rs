//! `weir-origin check`, and a start with several origins.

use std::process::Command;

use crate::prelude::*;
use weir_store::testing::TestServer;

const CLUSTER: &str = "[cluster]\nengine = \"bucket\"\nadvertise = \"https://origin-1.example:7400\"\n";

/// The exit code of `weir-origin`, what it printed, and its errors.
fn run(arguments: &[&str], home: &Home, more: &str) -> (Option<i32>, String, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_weir-origin"))
        .args(arguments)
        .arg("--config")
        .arg(home.write_config(more))
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (run.status.code(), text(run.stdout), text(run.stderr))
}

fn bucket(home: &Home, endpoint: &str) -> String {
    ["id", "secret"].iter().for_each(|name| fs::write(home.file(name), name).unwrap());
    format!(
        "{CLUSTER}[store]\nurl = \"s3://weir-hub/prod\"\nendpoint = \"{endpoint}\"\nallow_http = true\n\
         access_key_id_file = \"id\"\nsecret_access_key_file = \"secret\"\n"
    )
}

#[tokio::test]
async fn a_bucket_is_proved_and_nothing_is_left_behind() {
    let Some(server) = TestServer::moto() else { return };
    let home = Home::new();
    let config = bucket(&home, &server.endpoint);
    let (code, _, errors) = run(&["check"], &home, &config);
    assert!(code == Some(1) && errors.contains("could not be checked") && errors.contains("NoSuchBucket"), "{errors}");
    server.create_bucket("weir-hub").await;
    let (code, found, errors) = run(&["check"], &home, &config);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(found.contains("24 races of 8 writers for 6 records had one winner each"), "{found}");
    let listed = reqwest::get(format!("{}/weir-hub", server.endpoint)).await.unwrap().text().await.unwrap();
    assert!(listed.contains("ListBucketResult") && !listed.contains("<Key>"), "{listed}");
}

#[test]
fn a_cluster_without_its_engine_is_refused() {
    let home = Home::new();
    let (code, _, errors) = run(&["check"], &home, "");
    assert!(code == Some(2) && errors.contains("there is no section [cluster]"), "{errors}");
    for arguments in [&["check"][..], &["members"], &["--check-config"], &[]] {
        let (code, _, errors) = run(arguments, &home, CLUSTER);
        assert!(code == Some(2) && errors.contains("needs [store] url of a bucket"), "{errors}");
    }
    let config = bucket(&home, "http://127.0.0.1:1");
    for arguments in [&["check"][..], &[]] {
        let (code, _, errors) = run(arguments, &home, &config);
        assert!(code == Some(1) && errors.contains("could not be checked"), "{errors}");
    }
    let (code, _, errors) = run(&["members"], &home, &config);
    assert!(code == Some(1) && errors.contains("nodes/"), "{errors}");
}
