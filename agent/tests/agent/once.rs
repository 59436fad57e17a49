//! `--once`.

use std::time::Duration;

use weir_agent::once;

use crate::agent_under_test::{World, shop};
use crate::edge::Fault;
use crate::tarball::with_content;

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn it_ends_with_the_release_and_its_exec() {
    let world = World::new();
    let edge = world.edge().await;
    edge.answers.publish(&shop(), with_content("one"));
    // What passes is waited for.
    edge.answers.fail([Fault::Status(503, None)]);
    let mut config = world.config(&[edge.url()]);
    config.services[0].exec = Some("cp content ../../copied".to_owned());
    once(config.clone(), LONG).await.unwrap();
    assert_eq!(std::fs::read_to_string(world.service_dir().join("copied")).unwrap(), "one");
    // Again: confirmed, and nothing to run.
    std::fs::remove_file(world.service_dir().join("copied")).unwrap();
    once(config, LONG).await.unwrap();
    assert!(!world.service_dir().join("copied").exists());
}

#[tokio::test]
async fn it_fails_with_the_reason() {
    let world = World::new();
    let edge = world.edge().await;
    let config = world.config(&[edge.url()]);
    let reason = |result: Result<(), weir_agent::OnceError>| result.expect_err("it fails").to_string();
    let unknown = reason(once(config.clone(), LONG).await);
    assert!(unknown.contains("shop") && unknown.contains("404"), "{unknown}");

    edge.answers.fail_always(Fault::Status(503, None));
    let late = reason(once(config.clone(), Duration::from_secs(6)).await);
    assert!(late.contains("503"), "{late}");

    edge.answers.fail_always(None);
    edge.answers.publish(&shop(), with_content("one"));
    let mut failing = config.clone();
    failing.services[0].exec = Some("exit 7".to_owned());
    let exec = reason(once(failing, LONG).await);
    assert!(exec.contains("exit status: 7"), "{exec}");

    let mut nowhere = config;
    nowhere.ca = world.path().join("no-such.pem");
    assert!(reason(once(nowhere, LONG).await).contains("no-such.pem"));
}
