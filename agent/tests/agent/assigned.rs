//! What operators assign begins and ends while the agent runs.

use std::time::Duration;

use weir_agent::config::{ServiceConfig, ServiceList};
use weir_agent::{Config, Running, start};
use weir_protocol::agent_event::AgentEventKind;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::ProblemKind;

use crate::agent_under_test::{Agent, World, admin, shop};
use crate::edge::{PATIENCE, TestEdge};
use crate::tarball::with_content;
use crate::trust::{key, trusting};

fn bakery() -> ServiceName {
    "bakery".parse().unwrap()
}

fn assigned(world: &World, edge: &TestEdge) -> Config {
    let mut config = world.config(&[edge.url()]);
    config.services.clear();
    config.list = ServiceList::Assigned;
    config.spread = Duration::ZERO;
    config.unassign_after = Duration::ZERO;
    config
}

pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waited = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

pub(crate) async fn until_released(running: &Running, service: &ServiceName) {
    until("it is followed", || running.service(service).is_some()).await;
    let mut status = running.service(service).unwrap();
    let released = status.wait_for(|status| status.release.is_some());
    tokio::time::timeout(PATIENCE, released).await.expect("a release").expect("it runs");
}

#[tokio::test]
async fn services_begin_and_end_with_their_assignment() {
    let (world, edge) = World::offering("one").await;
    edge.answers.publish(&bakery(), with_content("bread"));
    edge.answers.assign(&[&shop()]);
    let log = world.path().join("hooks");
    let mut config = assigned(&world, &edge);
    let mut every = ServiceConfig::of("*".parse().unwrap());
    every.exec = Some(format!("echo $WEIR_SERVICE >> {}", log.display()).into());
    config.services = vec![every];
    let running = start(config.clone()).await.unwrap();
    until_released(&running, &shop()).await;
    assert!(running.service(&bakery()).is_none());

    edge.answers.assign(&[&bakery()]);
    until("the stream is open", || edge.answers.streams() == 1).await;
    edge.answers.send(AgentEventKind::Unassigned(shop()));
    until_released(&running, &bakery()).await;
    until("the other one has ended", || running.services() == [bakery()]).await;
    assert_eq!(world.read("content").as_deref(), Some("one"), "the directory stays");
    let ran = || std::fs::read_to_string(&log).unwrap_or_default();
    until("both hooks have run", || ran().lines().count() == 2).await;
    edge.answers.publish(&shop(), with_content("two"));

    // Errors end nothing, also not those of an edge that has lost its memory.
    for status in [503, 404, 401] {
        edge.answers.fail_batch_polls(status);
        let polls = edge.answers.batch_polls().len();
        edge.answers.send(AgentEventKind::Resync);
        until("it has polled", || edge.answers.batch_polls().len() > polls).await;
        assert_eq!(running.services(), [bakery()]);
        edge.answers.fail_batch_polls(None);
        if status != 404 {
            edge.answers.send(AgentEventKind::Resync);
        }
    }
    assert!(running.drain(PATIENCE).await);

    // The next process knows what was followed, without an edge.
    edge.answers.fail_batch_polls(503);
    let running = start(config.clone()).await.unwrap();
    assert_eq!(running.services(), [bakery()]);
    edge.answers.fail_batch_polls(None);
    edge.answers.assign(&[&bakery(), &shop()]);
    until_released(&running, &shop()).await;
    until("its hook has run", || ran().lines().filter(|line| *line == "shop").count() == 2).await;
    assert_eq!(world.read("content").as_deref(), Some("two"));
    assert!(running.drain(PATIENCE).await);
}

#[tokio::test]
async fn a_pattern_is_followed_and_allow_limits_it() {
    let (world, edge) = World::with_edge().await;
    let shops: Vec<ServiceName> = ["shop-a", "shop-b", "shop-test"].map(|name| name.parse().unwrap()).into();
    for service in shops.iter().chain([&shop(), &bakery()]) {
        edge.answers.publish(service, with_content(service.as_str()));
    }
    edge.answers.assign(&[]);
    let mut config = world.config(&[edge.url()]);
    config.spread = Duration::ZERO;
    config.services.push(ServiceConfig::of("shop-*".parse().unwrap()));
    config.allow = ["shop-a", "*-b"].map(|glob| glob.parse().unwrap()).into();
    let agent = Agent::with_release(config).await;
    until_released(&agent.running, &shops[0]).await;
    until_released(&agent.running, &shops[1]).await;
    assert_eq!(agent.running.services(), [shop(), shops[0].clone(), shops[1].clone()]);
    assert_eq!(agent.metric("weir_agent_services", &[]), 3.0);
    agent.stop().await;
}

#[tokio::test]
async fn what_is_assigned_outside_allow_is_shown() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[&shop(), &bakery()]);
    let mut config = assigned(&world, &edge);
    config.poll_interval = Duration::from_secs(1);
    config.allow = vec!["s*".parse().unwrap()];
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    let running = start(config).await.unwrap();
    until_released(&running, &shop()).await;
    let status = running.service(&shop()).unwrap();
    let agent = Agent { running, status };
    assert_eq!(agent.metric_if_any("weir_agent_services_not_allowed", &[]), Some(1.0));
    assert_eq!(agent.shown().await["not_allowed"], serde_json::json!(["bakery"]));
    let problem = || edge.answers.observed_row(&bakery()).and_then(|row| row.problem).map(|problem| problem.kind);
    until("the edge is told", || problem() == Some(ProblemKind::NotAllowed)).await;
    edge.answers.assign(&[&shop()]);
    let is_removed = || edge.answers.observed().iter().any(|message| message.removed == [bakery()]);
    until("the edge is told that it is not assigned any more", is_removed).await;
    agent.until_metric("weir_agent_services_not_allowed", &[], 0.0).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_directory_is_removed_when_it_was_unassigned_for_long() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[&shop()]);
    let mut config = assigned(&world, &edge);
    config.poll_interval = Duration::from_secs(1);
    config.remove_unassigned_after = Duration::from_secs(1);
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    let running = start(config).await.unwrap();
    until_released(&running, &shop()).await;
    edge.answers.assign(&[]);
    until("it has ended", || running.services().is_empty()).await;
    until("its directory is gone", || !world.service_dir().exists()).await;
    edge.answers.assign(&[&shop()]);
    until_released(&running, &shop()).await;
    assert_eq!(world.read("content").as_deref(), Some("one"));
    assert!(running.drain(PATIENCE).await);
}

#[tokio::test]
async fn a_short_list_ends_a_service_only_after_a_while_and_when_no_edge_lists_it() {
    let world = World::new();
    let (first, second) = (world.edge().await, world.edge().await);
    let keys = [key()];
    for edge in [&first, &second] {
        for service in [shop(), bakery()] {
            edge.answers.publish_at(&service, with_content("one"), 5);
            edge.answers.sign(&service, &keys);
        }
        edge.answers.assign(&[&shop(), &bakery()]);
    }
    let mut config = trusting(&world, &[first.url(), second.url()], &[&keys[0]]);
    (config.list, config.services) = (ServiceList::Assigned, Vec::new());
    config.poll_interval = Duration::from_secs(1);
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    config.unassign_after = Duration::from_secs(600);
    let running = start(config.clone()).await.unwrap();
    until_released(&running, &shop()).await;
    until_released(&running, &bakery()).await;
    let polls = || first.answers.batch_polls().len();
    for list in [vec![&bakery()], vec![]] {
        first.answers.assign(&list);
        let before = polls();
        until("it has polled twice", || polls() > before + 1).await;
        assert_eq!(running.services(), [bakery(), shop()]);
        let (status, ready) = admin(&running, "/readyz").await;
        assert!(status == 200 && ready.contains("shop is unassigned since"), "{ready}");
    }
    assert!(second.answers.batch_polls().is_empty(), "it is not asked before the time is over");
    assert!(running.drain(PATIENCE).await);

    // With `trust`, an edge that does not answer may list it; then one that does.
    second.answers.fail_batch_polls(503);
    config.unassign_after = Duration::from_secs(1);
    let running = start(config).await.unwrap();
    let asked = |status| second.answers.batch_polls().iter().filter(|poll| poll.0 == status).count();
    until("it has asked all twice", || asked(503) > 1).await;
    assert_eq!(running.services(), [bakery(), shop()]);
    second.answers.assign(&[&shop()]);
    second.answers.fail_batch_polls(None);
    until("the one that no edge lists has ended", || running.services() == [shop()]).await;
    let before = asked(200);
    until("it has asked all again", || asked(200) > before).await;
    assert_eq!(running.services(), [shop()]);
    second.answers.assign(&[]);
    until("it has ended", || running.services().is_empty()).await;
    assert!(running.drain(PATIENCE).await);
}
