//! `--once`.

use std::time::Duration;

use weir_agent::config::{ServiceConfig, ServiceList};
use weir_agent::once;

use crate::agent_under_test::{Agent, NEVER, World, shop};
use crate::edge::{Fault, PATIENCE};
use crate::tarball::with_content;

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn once_ends_after_the_release_and_its_exec() {
    let (world, edge) = World::offering("one").await;
    // What passes is waited for.
    edge.answers.fail([Fault::Status(503, None)]);
    let mut config = world.config(&[edge.url()]);
    config.services[0].exec = Some("cp content ../../copied".into());
    once(config.clone(), LONG).await.unwrap();
    assert_eq!(std::fs::read_to_string(world.service_dir().join("copied")).unwrap(), "one");
    // Again: confirmed, and nothing to run.
    std::fs::remove_file(world.service_dir().join("copied")).unwrap();
    once(config.clone(), LONG).await.unwrap();
    assert!(!world.service_dir().join("copied").exists());
    // That another command has succeeded says nothing about this one.
    config.services[0].exec = Some("exit 3".into());
    let failed = once(config.clone(), LONG).await.expect_err("this command fails").to_string();
    assert!(failed.contains("exit status: 3"), "{failed}");
    config.services[0].exec = None;
    once(config, LONG).await.unwrap();
}

#[tokio::test]
async fn exec_never_runs_for_a_release_that_no_edge_has_confirmed() {
    let (world, edge) = World::with_edge().await;
    let log = world.path().join("log");
    edge.answers.publish(&shop(), with_content("one"));
    let mut config = world.config(&[edge.url()]);
    config.services[0].exec = Some("exit 3".into());
    let mut agent = Agent::start(config.clone()).await;
    agent.until("a run of exec is pending", |status| status.hook_failures > 0).await;
    agent.stop().await;

    config.services[0].exec = Some(format!("cat content >> {0}; echo >> {0}", log.display()).into());
    edge.answers.fail_always(Fault::Status(503, None));
    once(config.clone(), Duration::from_secs(3)).await.unwrap_err();
    assert!(!log.exists(), "no edge confirmed the release");
    edge.answers.fail_always(None);
    edge.answers.publish(&shop(), with_content("two"));
    edge.answers.fail([Fault::Status(503, None)]);
    once(config, LONG).await.unwrap();
    assert_eq!(std::fs::read_to_string(log).unwrap(), "two\n");
}

#[tokio::test]
async fn once_fails_with_the_reason() {
    let (world, edge) = World::with_edge().await;
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
    failing.services[0].exec = Some("exit 7".into());
    let exec = reason(once(failing, LONG).await);
    assert!(exec.contains("exit status: 7"), "{exec}");

    let mut nowhere = config;
    nowhere.ca = world.path().join("no-such.pem");
    assert!(reason(once(nowhere, LONG).await).contains("no-such.pem"));
}

#[tokio::test]
async fn an_agent_without_a_list_says_what_the_edge_answered() {
    let (world, edge) = World::with_edge().await;
    edge.answers.assign(&[]);
    let mut config = world.config(&[edge.url()]);
    (config.list, config.services) = (ServiceList::Assigned, Vec::new());
    let reason = async |timeout| once(config.clone(), timeout).await.expect_err("it fails").to_string();
    edge.answers.fail_batch_polls(401);
    let refused = tokio::time::timeout(PATIENCE, reason(NEVER)).await.expect("a bad token ends it at once");
    assert!(refused.contains("401 Unauthorized: The token has expired.") && refused.contains("token"), "{refused}");
    edge.answers.fail_batch_polls(503);
    let late = reason(Duration::from_secs(2)).await;
    assert!(late.contains("no edge listed the services") && late.contains("503"), "{late}");
}

#[tokio::test]
async fn a_service_that_fails_for_good_does_not_wait_for_another() {
    let (world, edge) = World::with_edge().await;
    let bakery = "bakery".parse().unwrap();
    edge.answers.fail_service(&bakery, Fault::Status(503, None));
    let mut config = world.config(&[edge.url()]);
    config.services.push(ServiceConfig::new(&bakery));
    let failed = tokio::time::timeout(PATIENCE, once(config, NEVER)).await.expect("it ends").unwrap_err().to_string();
    assert!(failed.contains("shop") && failed.contains("404"), "{failed}");
}
