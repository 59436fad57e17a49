//! `weir-origin check`, and a start with several origins.

use std::process::Command;

use tokio::net::{TcpListener, TcpStream};

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

/// Passes connections on to a store, or breaks them off while it is away.
async fn gate(endpoint: &str) -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (is_away, store) = (Arc::new(AtomicBool::new(true)), endpoint.trim_start_matches("http://").to_owned());
    let away = is_away.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            if !away.load(Ordering::SeqCst) {
                let mut server = TcpStream::connect(&store).await.unwrap();
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
            }
        }
    });
    (format!("http://{address}"), is_away)
}

#[tokio::test]
async fn an_origin_starts_once_its_store_answers_and_says_so_until_then() {
    let Some(server) = TestServer::moto() else { return };
    server.create_bucket("weir-hub").await;
    let (endpoint, is_away) = gate(&server.endpoint).await;
    let home = Home::new();
    let mut config = Config::load(&home.write_config(&bucket(&home, &endpoint))).unwrap();
    let admin = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    config.admin_listen = Some(admin);
    let get = async |path: &str| {
        let response = reqwest::get(format!("http://{admin}{path}")).await.ok()?;
        Some((response.status().as_u16(), response.text().await.ok()?))
    };
    let waits =
        async || get("/readyz").await.is_some_and(|(status, said)| status == 503 && said.contains("does not answer"));
    let look = async {
        until(waits).await;
        assert_eq!(get("/livez").await.unwrap().0, 200);
        let (_, status) = get("/status").await.unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        let reason = status["reasons"][0].as_str().unwrap();
        assert!(status["ready"] == false && reason.contains("could not be checked"), "{status}");
        is_away.store(false, Ordering::SeqCst);
    };
    let (running, ()) = in_time(async { tokio::join!(Box::pin(weir_origin::start(config)), look) }).await;
    let running = running.unwrap();
    until(async || get("/readyz").await.is_some_and(|(status, _)| status == 200)).await;
    assert_eq!(running.admin_address(), Some(admin));
    running.cut().await;
}

#[test]
fn a_cluster_without_its_engine_is_refused() {
    let home = Home::new();
    let (code, _, errors) = run(&["check"], &home, "");
    assert!(code == Some(2) && errors.contains("there is no section [cluster]"), "{errors}");
    for arguments in [&["check"][..], &["--check-config"], &[]] {
        let (code, _, errors) = run(arguments, &home, CLUSTER);
        assert!(code == Some(2) && errors.contains("needs [store] url of a bucket"), "{errors}");
    }
    let config = bucket(&home, "http://127.0.0.1:1");
    let (code, _, errors) = run(&["check"], &home, &config);
    assert!(code == Some(1) && errors.contains("could not be checked"), "{errors}");
}
