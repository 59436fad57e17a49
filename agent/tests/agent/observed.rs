//! What an agent tells the edge in use of what it runs.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_agent::config::{ServiceConfig, ServiceList};
use weir_agent::start;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::{AgentObserved, HookState, Phase, ProblemKind};

use crate::agent_under_test::{Agent, NEVER, World, shop};
use crate::assigned::until;
use crate::edge::{Answers, PATIENCE};
use crate::tarball::with_content;

const MESSAGES: &str = "weir_agent_observed_messages_total";

/// Waits for the next messages after the first `known` ones, until one satisfies a condition.
async fn until_message(answers: &Answers, known: usize, what: &str, is_it: impl Fn(&AgentObserved) -> bool) {
    until(what, || answers.observed().iter().skip(known).any(&is_it)).await;
}

#[tokio::test]
async fn what_an_agent_runs_is_sent_as_it_changes() {
    let (world, edge) = World::with_edge().await;
    edge.answers.assign(&[]);
    let (digest, generation) = edge.answers.publish(&shop(), with_content("one"));
    let bakery: ServiceName = "bakery".parse().unwrap();
    let (bread, _) = edge.answers.publish(&bakery, with_content("bread"));
    let mut config = world.config(&[edge.url()]);
    config.services[0].exec = Some("false".into());
    config.services.push(ServiceConfig::new(&bakery));
    let mut agent = Agent::with_release(config).await;
    let row = |service: &ServiceName| edge.answers.observed_row(service);
    until("the edge knows of the failed hook", || row(&shop()).is_some_and(|row| row.hook == HookState::Failed)).await;
    let shown = row(&shop()).unwrap();
    let current = shown.current.unwrap();
    assert_eq!((current.digest, current.generation), (digest, generation));
    assert_eq!(shown.desired.map(|desired| desired.digest), Some(digest));
    let problem = shown.problem.unwrap();
    assert!(shown.phase == Phase::Hook && problem.kind == ProblemKind::HookFailed, "{problem:?}");
    until("it knows the other service", || {
        row(&bakery).and_then(|row| row.current).is_some_and(|current| current.digest == bread)
    })
    .await;

    let known = edge.answers.observed_count();
    let (two, _) = edge.answers.publish(&shop(), with_content("two"));
    agent.poll().await;
    until("the change is sent", || {
        row(&shop()).and_then(|row| row.current).is_some_and(|current| current.digest == two)
    })
    .await;
    let messages = edge.answers.observed();
    assert!(messages[0].full && messages[0].seq == 1 && messages[0].version == env!("CARGO_PKG_VERSION"));
    let follows = |pair: &[AgentObserved]| pair[0].seq + 1 == pair[1].seq && pair[0].instance == pair[1].instance;
    assert!(messages.windows(2).all(follows), "{messages:?}");
    let changes = &messages[known..];
    assert!(changes.iter().all(|message| !message.full), "{changes:?}");
    assert!(changes.iter().flat_map(|message| &message.rows).all(|row| row.service == shop()), "{changes:?}");
    agent.stop().await;
}

#[tokio::test]
async fn an_edge_that_lacks_something_gets_all_rows() {
    let (world, edge) = World::with_edge().await;
    edge.answers.begin_instance("one");
    edge.answers.publish(&shop(), with_content("one"));
    let mut config = world.config(&[edge.url()]);
    config.poll_interval = Duration::from_secs(1);
    config.spread = Duration::ZERO;
    let mut agent = Agent::with_release(config).await;
    let is_current = || edge.answers.observed_row(&shop()).is_some_and(|row| row.phase == Phase::Current);
    until("the edge knows the release", is_current).await;
    let all = |message: &AgentObserved| message.full && message.rows.len() == 1;

    // It was lost on the way, as far as the edge knows.
    let known = edge.answers.observed_count();
    edge.answers.answer_observed(409);
    edge.answers.publish(&shop(), with_content("two"));
    agent.poll().await;
    until_message(&edge.answers, known, "all rows follow", all).await;
    let messages = edge.answers.observed();
    assert!(!messages[known].full && messages[known + 1].full, "{messages:?}");
    assert_eq!(messages[known].seq, messages[known + 1].seq, "the edge did not take it in");
    agent.until_metric(MESSAGES, &[("result", "resync")], 1.0).await;

    // Another run of the edge, at which nothing has changed.
    let known = edge.answers.observed_count();
    edge.answers.begin_instance("two");
    until_message(&edge.answers, known, "the other run gets all rows", all).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_change_waits_for_an_edge_without_room() {
    let (world, edge) = World::offering("one").await;
    for status in [429, 404] {
        edge.answers.answer_observed(status);
    }
    let agent = Agent::with_release(world.config(&[edge.url()])).await;
    agent.until_metric(MESSAGES, &[("result", "deferred")], 1.0).await;
    agent.until_metric(MESSAGES, &[("result", "unavailable")], 1.0).await;
    let messages = edge.answers.observed();
    assert_eq!(messages.len(), 2, "after a 404 the agent waits for long: {messages:?}");
    assert!(messages.iter().all(|message| message.full && message.seq == 1), "{messages:?}");
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_with_ten_thousand_services_tells_of_all() {
    if std::env::var_os("WEIR_NIGHTLY").is_none_or(|value| value != "1") {
        eprintln!("SKIPPED: ten thousand directories take a minute; WEIR_NIGHTLY=1 runs it");
        return;
    }
    let (world, edge) = World::with_edge().await;
    let services: Vec<ServiceName> = (0..10_000).map(|n| format!("service-{n:0>60}").parse().unwrap()).collect();
    edge.answers.assign(&services.iter().collect::<Vec<_>>());
    let mut config = world.config(&[edge.url()]);
    config.services.clear();
    config.list = ServiceList::Assigned;
    // None of them is polled by itself: no edge has a publication.
    config.spread = NEVER;
    let running = start(config).await.unwrap();
    let all_followed = async {
        while running.services().len() < services.len() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(10 * PATIENCE, all_followed).await.expect("all are followed");
    let known = edge.answers.observed_count();
    // To a message of a minute later, if all has been sent.
    edge.answers.answer_observed(409);
    let (mut looked_at, mut told, mut parts) = (known, BTreeSet::new(), 0);
    let complete = async {
        while told.len() < services.len() {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let messages = edge.answers.observed().split_off(looked_at);
            looked_at += messages.len();
            for message in messages {
                parts += u64::from(message.full || parts > 0);
                told.extend(message.rows.into_iter().filter(|_| parts > 0).map(|row| row.service));
            }
        }
    };
    tokio::time::timeout(5 * PATIENCE, complete).await.expect("an edge that lacks something gets all rows");
    assert!(parts > 1, "they do not fit into one message");
    running.cut().await;
}
