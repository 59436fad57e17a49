//! Tests against moto (S3), Azurite (Azure) and servers with flaws.

mod flawed_server;

use std::path::Path as Folder;
use std::process::Command;
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;

use self::flawed_server::{Flaw, FlawedServer};
use super::super::contract;
use super::super::engine::Engine;
use super::super::proof::{ProofError, prove_engine};
use super::*;
use crate::bucket::client::build;
use crate::bucket::tests::{config, open};
use crate::test_server::TestServer;

fn shop() -> RecordKey {
    "repositories/shop".parse().unwrap()
}

fn on(server: &FlawedServer, folder: &Folder) -> BucketEngine {
    BucketEngine::open(&config(folder, "s3://weir-hub/prod", &server.endpoint)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_on_s3() {
    let Some(server) = TestServer::moto() else { return };
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "s3://weir-hub/prod", &server.endpoint);
    let engine = BucketEngine::open(&config).unwrap();
    let read = engine.get(&shop()).await;
    assert!(matches!(read, Err(RecordError::Unavailable { .. })), "no bucket is not an empty one: {read:?}");
    server.create_bucket("weir-hub").await;
    contract::holds(Engine::Bucket(engine.clone())).await;
    assert_eq!(open(&config, dir.path()).await.repositories().await.unwrap(), [], "records are beside repositories");

    for damaged in ["".to_owned(), "damaged".to_owned(), "x".repeat(MAX_FILE_BYTES as usize + 1)] {
        engine.bucket.put(&path(&shop()), damaged.into()).await.unwrap();
        let read = engine.get(&shop()).await;
        assert!(matches!(&read, Err(RecordError::Damaged { key, .. }) if *key == shop()), "{read:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_on_azure() {
    let mut command = Command::new("azurite-blob");
    command.args(["--blobPort", "0", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]);
    let Some(mut server) = TestServer::spawn(command, "`npm install --global azurite` brings it") else { return };
    server.wait_for_url();
    let endpoint = format!("{}/{ACCOUNT}", server.endpoint);
    create_container(&endpoint, "weir-hub").await;
    let options = [("account_name", ACCOUNT), ("account_key", KEY), ("endpoint", &endpoint), ("allow_http", "true")];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let bucket =
        build(&"az://weir-hub/prod".parse().unwrap(), options, None, Some(REQUEST_TIMEOUT), &ServerClocks::default())
            .unwrap();
    contract::holds(Engine::Bucket(BucketEngine { bucket, by_generation: false })).await;
}

/// The account that Azurite has, and its published key.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Creates a container, by a request with a shared-key signature.
async fn create_container(endpoint: &str, name: &str) {
    let date = httpdate::fmt_http_date(SystemTime::now());
    let version = "2021-12-02";
    let signed = format!(
        "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, &BASE64_STANDARD.decode(KEY).unwrap());
    let signature = BASE64_STANDARD.encode(hmac::sign(&key, signed.as_bytes()));
    let request = reqwest::Client::new()
        .put(format!("{endpoint}/{name}?restype=container"))
        .header("x-ms-date", date)
        .header("x-ms-version", version)
        .header("authorization", format!("SharedKey {ACCOUNT}:{signature}"))
        .header("content-length", 0);
    request.send().await.unwrap().error_for_status().unwrap();
}

#[tokio::test]
async fn a_server_that_lets_several_writers_win_is_refused() {
    for flaw in [Flaw::Races, Flaw::Unconditional] {
        let (server, dir) = (FlawedServer::start(flaw).await, tempfile::tempdir().unwrap());
        match prove_engine(&Engine::Bucket(on(&server, dir.path()))).await {
            Err(ProofError::Refused(reason)) if reason.starts_with("8 of 8 writers that raced to create") => {}
            other => panic!("{flaw:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_write_without_an_answer_is_sent_once_and_its_outcome_is_unknown() {
    for flaw in [Flaw::Fails, Flaw::BreaksOff, Flaw::Silent] {
        let (server, dir) = (FlawedServer::start(flaw).await, tempfile::tempdir().unwrap());
        let config = config(dir.path(), "s3://weir-hub/prod", &server.endpoint);
        let once = if flaw == Flaw::Silent { Duration::from_millis(500) } else { REQUEST_TIMEOUT };
        let bucket =
            bucket::open(&config, &"s3://weir-hub/prod".parse().unwrap(), Some(once), &ServerClocks::default())
                .unwrap();
        let engine = BucketEngine { bucket, by_generation: false };
        let outcome = engine.put(&shop(), b"one", Expect::Absent).await;
        assert!(matches!(outcome, PutOutcome::Unknown(RecordError::Unavailable { .. })), "{flaw:?}: {outcome:?}");
        assert_eq!(server.writes(), 1, "{flaw:?}");
        assert_eq!(engine.get(&shop()).await.unwrap().unwrap().bytes, "one");
        let outcome = engine.put(&shop(), b"two", Expect::Absent).await;
        assert!(matches!(outcome, PutOutcome::Conflict), "{flaw:?}: {outcome:?}");
    }
}
