//! Several edges.

use std::time::Duration;

use weir_agent::config::ServiceConfig;
use weir_protocol::agent_event::AgentEventKind;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::{Answers, Fault, PATIENCE, TestEdge};
use crate::tarball::with_content;

#[tokio::test]
async fn a_working_edge_is_preferred_and_a_failing_one_replaced_at_once() {
    let world = World::new();
    let (first, second) = (world.edge().await, world.edge().await);
    for edge in [&first, &second] {
        edge.answers.publish(&shop(), with_content("one"));
    }
    let mut agent = Agent::with_release(world.config(&[first.url(), second.url()])).await;
    assert_eq!(second.answers.seen().len(), 0);

    first.answers.fail_always(Fault::Status(503, Some(60)));
    let status = agent.poll().await;
    assert_eq!((status.errors, status.unchanged), (0, 1), "the second answered within the same poll");
    first.answers.fail_always(None);
    first.answers.forget();
    agent.poll().await;
    assert_eq!(first.answers.seen().len(), 0, "the agent stays with the one that works");

    // Wrong bytes, twice, and an older generation are reasons to ask the next one too.
    for edge in [&first, &second] {
        edge.answers.publish(&shop(), with_content("two"));
    }
    second.answers.fail_always(Fault::FlipBit);
    assert_eq!(agent.poll().await.errors, 0);
    assert_eq!(world.read("content").as_deref(), Some("two"));
    assert_eq!(agent.metric("weir_agent_errors_total", &[("kind", "verify")]), 1.0);

    second.answers.fail_always(None);
    first.answers.publish_at(&shop(), with_content("one"), 1);
    assert_eq!(agent.poll().await.errors, 0);
    assert_eq!(world.read("content").as_deref(), Some("two"));

    let urls = [first.url(), second.url()];
    let (first, second) = (first.cut().await, second.cut().await);
    drop((first, second));
    let status = agent.poll().await;
    let error = status.last_error.unwrap();
    assert!(status.errors >= 1 && urls.iter().all(|url| error.contains(&format!("{url}: cannot connect"))), "{error}");
    assert_eq!(world.read("content").as_deref(), Some("two"));
    agent.stop().await;
}

#[tokio::test]
async fn an_edge_with_a_certificate_of_another_authority_is_rejected() {
    let (world, other) = (World::new(), World::new());
    let edge = other.edge().await;
    edge.answers.publish(&shop(), with_content("one"));
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    agent.until("the first poll has ended", |status| status.polls > 0).await;
    // The batch poll may have opened the connection of the first one.
    let status = agent.poll().await;
    let error = status.last_error.unwrap();
    assert!(error.contains("TLS to the edge failed"), "{error}");
    assert!(!status.last_error_retryable);
    assert_eq!(edge.answers.seen().len(), 0);
    agent.stop().await;
}

#[tokio::test]
async fn the_problem_document_of_the_edge_is_reported() {
    let (world, edge) = World::with_edge().await;
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    agent.until("the first poll has ended", |status| status.polls > 0).await;
    edge.answers.fail_always(Fault::Problem(503, "The clone\nis at 40 %.".to_owned()));
    let error = agent.poll().await.last_error.unwrap();
    assert_eq!(error, format!("{}: the edge answers 503 Service Unavailable: The clone is at 40 %.", edge.url()));
    edge.answers.fail_always(None);
    edge.answers.publish(&shop(), with_content("one"));
    assert_eq!(agent.poll().await.last_error, None);
    // Also where the poll is a HEAD, whose answer has no body.
    edge.answers.fail_always(Fault::Problem(504, "Too stale.".to_owned()));
    let error = agent.poll().await.last_error.unwrap();
    assert_eq!(error, format!("{}: the edge answers 504 Gateway Timeout: Too stale.", edge.url()));
    edge.answers.fail_always(None);
    edge.answers.fail([Fault::Problem(500, String::new())]);
    edge.answers.publish(&shop(), with_content("two"));
    assert_eq!(agent.poll().await.last_error, None, "an edge that responds to the second request is used");
    assert_eq!(world.read("content").as_deref(), Some("two"));
    agent.stop().await;
}

#[tokio::test]
async fn an_error_of_one_service_does_not_change_the_preferred_edge() {
    let world = World::new();
    let (first, second) = (world.edge().await, world.edge().await);
    let bakery = "bakery".parse().unwrap();
    first.answers.publish(&shop(), with_content("one"));
    second.answers.publish(&bakery, with_content("two"));
    let mut config = world.config(&[first.url(), second.url()]);
    config.services.push(ServiceConfig::new(&bakery));
    let mut agent = Agent::with_release(config).await;
    let mut other = agent.running.service(&bakery).unwrap();
    tokio::time::timeout(PATIENCE, other.wait_for(|status| status.switches == 1)).await.unwrap().unwrap();
    second.answers.forget();
    agent.poll().await;
    assert_eq!(second.answers.seen().len(), 0, "the first edge serves this service well");
    // An edge that is away is avoided by all.
    first.answers.fail_always(Fault::Status(503, None));
    second.answers.publish_at(&shop(), with_content("three"), 5);
    assert_eq!(agent.poll().await.errors, 0);
    first.answers.forget();
    agent.running.poll_now(&bakery);
    tokio::time::timeout(PATIENCE, other.wait_for(|status| status.polls == 2)).await.unwrap().unwrap();
    assert_eq!(first.answers.seen().len(), 0);
    agent.stop().await;
}

/// Sends events of an edge until its streams have gone to another one.
async fn until_streams_move(from: &Answers, to: &Answers) {
    let moved = async {
        while to.streams() == 0 {
            from.send(AgentEventKind::Heartbeat);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, moved).await.expect("the stream follows the preference");
}

#[tokio::test]
async fn an_agent_goes_back_to_its_first_edge_with_its_stream() {
    let world = World::new();
    let (first, second) = (world.edge().await, world.edge().await);
    for edge in [&first, &second] {
        edge.answers.assign(&[]);
        edge.answers.publish(&shop(), with_content("one"));
    }
    let mut config = world.config(&[first.url(), second.url()]);
    config.edge_retry_interval = Duration::from_secs(1);
    let mut agent = Agent::with_release(config).await;
    let preferred =
        |agent: &Agent, edge: &TestEdge| agent.metric("weir_agent_edge_preferred", &[("edge", &edge.url())]);
    assert_eq!((preferred(&agent, &first), preferred(&agent, &second)), (1.0, 0.0));

    first.answers.fail_always(Fault::Status(503, None));
    agent.running.poll_now(&shop());
    agent.until_metric("weir_agent_edge_preferred", &[("edge", &second.url())], 1.0).await;
    assert_eq!(preferred(&agent, &first), 0.0);
    until_streams_move(&first.answers, &second.answers).await;

    // It is tried again and again, by polls that succeed at the other one.
    first.answers.forget();
    let probed = async {
        while first.answers.seen().len() < 2 {
            assert_eq!(agent.poll().await.errors, 0);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, probed).await.expect("the first edge is tried again");
    assert_eq!(preferred(&agent, &second), 1.0);

    first.answers.fail_always(None);
    let back = async {
        while preferred(&agent, &first) != 1.0 {
            assert_eq!(agent.poll().await.errors, 0);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, back).await.expect("the agent goes back");
    second.answers.forget();
    assert_eq!(agent.poll().await.errors, 0);
    assert_eq!(second.answers.seen().len(), 0);
    let gone = async {
        while second.answers.streams() > 0 {
            second.answers.send(AgentEventKind::Heartbeat);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the stream goes back");
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_leaves_an_edge_that_is_cut_off_from_its_origins() {
    let world = World::new();
    let (first, second) = (world.edge().await, world.edge().await);
    for edge in [&first, &second] {
        edge.answers.assign(&[]);
        edge.answers.publish(&shop(), with_content("one"));
    }
    let mut config = world.config(&[first.url(), second.url()]);
    config.edge_retry_interval = Duration::from_secs(1);
    config.poll_interval = Duration::from_secs(1);
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    let mut agent = Agent::with_release(config).await;
    // One is cut off, and the other does not say: it stays, and says so.
    first.answers.age(95);
    agent.until_ready("an origin confirmed its answer 95 s ago").await;
    assert_eq!(agent.metric("weir_agent_edge_preferred", &[("edge", &first.url())]), 1.0);
    second.answers.age(2);
    agent.until_metric("weir_agent_edge_preferred", &[("edge", &second.url())], 1.0).await;
    agent.until_ready("ready").await;
    // It works: polls of single services do not bring the agent back.
    let polls = |edge: &TestEdge| edge.answers.batch_polls().len();
    let (probed, before) = (polls(&first), agent.poll().await.polls);
    while polls(&first) < probed + 2 {
        agent.poll().await;
        assert_eq!(agent.metric("weir_agent_edge_preferred", &[("edge", &first.url())]), 0.0);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(agent.status.borrow().polls > before);
    first.answers.age(0);
    agent.until_metric("weir_agent_edge_preferred", &[("edge", &first.url())], 1.0).await;
    agent.stop().await;
}
