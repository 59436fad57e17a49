//! What a running agent takes over from a changed configuration.

use std::time::Duration;

use clap::Parser;
use weir_agent::command_line::Args;
use weir_agent::config::{ServiceConfig, ServiceList};
use weir_agent::start;
use weir_protocol::name::ServiceName;

use crate::agent_under_test::{Agent, World, shop};
use crate::assigned::{until, until_released};
use crate::edge::{Fault, PATIENCE};
use crate::tarball::with_content;

#[tokio::test]
async fn a_reload_applies_edges_and_certificates_or_changes_nothing() {
    let (world, other) = (World::new(), World::new());
    // The second edge is another authority's.
    let (first, second) = (world.edge().await, other.edge().await);
    first.answers.publish_at(&shop(), with_content("one"), 1);
    second.answers.publish_at(&shop(), with_content("two"), 2);
    let config = world.config(&[first.url()]);
    let mut agent = Agent::with_release(config.clone()).await;

    let reloads = |agent: &Agent, result| agent.metric("weir_agent_reloads_total", &[("result", result)]);
    let mut changed = config.clone();
    changed.edges = vec![second.url().parse().unwrap()];
    changed.ca = world.path().join("no-such.pem");
    let error = format!("{:#}", agent.running.reload(Ok(changed.clone())).await.unwrap_err());
    assert!(error.contains("no-such.pem"), "{error}");
    assert_eq!(agent.poll().await.last_error, None, "it goes on as before");
    assert!(second.answers.seen().is_empty());
    let unreadable = Args::try_parse_from(["weir-agent", "--config", "no-such.toml"]).unwrap().into_config();
    assert!(agent.running.reload(unreadable.map_err(Into::into)).await.is_err());
    assert_eq!((reloads(&agent, "applied"), reloads(&agent, "refused")), (0.0, 2.0));
    assert_eq!(agent.metric("weir_agent_reload_refused", &[]), 1.0);

    changed.ca = other.path().join("ca.pem");
    // This one waits for a restart, and is no reason to refuse the rest.
    changed.keep_releases = 7;
    // By then it has received a `Retry-After`.
    first.answers.fail_always(Fault::Status(503, Some(600)));
    assert!(agent.poll().await.last_error.is_some());
    agent.running.reload(Ok(changed)).await.unwrap();
    // The new edge is polled at once.
    agent.until("it has the other's release", |status| status.switches == 2 && status.last_error.is_none()).await;
    assert_eq!(world.read("content").as_deref(), Some("two"));
    assert_eq!((reloads(&agent, "applied"), reloads(&agent, "refused")), (1.0, 2.0));
    assert_eq!(agent.metric("weir_agent_reload_refused", &[]), 0.0);
    agent.stop().await;
}

#[tokio::test]
async fn a_changed_authority_is_read_without_a_signal() {
    let (world, other) = (World::new(), World::new());
    // The edge has a certificate of an authority that the agent does not trust yet.
    let edge = other.edge().await;
    edge.answers.publish_at(&shop(), with_content("one"), 1);
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    assert!(agent.poll().await.last_error.is_some());
    let ends =
        |credential| agent.metric("weir_agent_credential_not_after_timestamp_seconds", &[("credential", credential)]);
    assert!(ends("authority") > 1e9 && ends("certificate") == 0.0);
    let reloads = |agent: &Agent, result| agent.metric("weir_agent_reloads_total", &[("result", result)]);
    std::fs::write(world.path().join("ca.pem"), "torn").unwrap();
    agent.until_metric("weir_agent_reloads_total", &[("result", "refused")], 1.0).await;
    std::fs::copy(other.path().join("ca.pem"), world.path().join("ca.pem")).unwrap();
    agent.until_metric("weir_agent_reloads_total", &[("result", "applied")], 1.0).await;
    agent.running.poll_now(&shop());
    agent.until("it follows", |status| status.switches == 1 && status.last_error.is_none()).await;
    assert_eq!((world.read("content").as_deref(), reloads(&agent, "refused")), (Some("one"), 1.0));
    agent.stop().await;
}

#[tokio::test]
async fn a_reload_begins_and_ends_services_and_changes_their_hooks() {
    let (world, edge) = World::with_edge().await;
    let [bakery, pantry]: [ServiceName; 2] = ["bakery", "pantry"].map(|name| name.parse().unwrap());
    for service in [&shop(), &bakery, &pantry] {
        edge.answers.publish(service, with_content("one"));
    }
    let log = world.path().join("hooks");
    let hook = |service: &ServiceName, word: &str| {
        let exec = Some(format!("echo {word} $WEIR_SERVICE >> {}", log.display()).into());
        ServiceConfig { exec, ..ServiceConfig::new(service) }
    };
    let ran = |line: &str| std::fs::read_to_string(&log).unwrap_or_default().lines().filter(|ran| *ran == line).count();
    let mut config = world.config(&[edge.url()]);
    config.services = vec![hook(&shop(), "first"), hook(&bakery, "first")];
    let agent = Agent::with_release(config.clone()).await;
    until("the hooks have run", || ran("first shop") == 1 && ran("first bakery") == 1).await;

    // The directory of the new one cannot be used: that one waits.
    let mut changed = config.clone();
    changed.services = vec![hook(&bakery, "second"), hook(&pantry, "first")];
    let obstacle = world.path().join("root/pantry");
    std::fs::write(&obstacle, "").unwrap();
    agent.running.reload(Ok(changed)).await.unwrap();
    let mut waiting = agent.running.service(&pantry).unwrap();
    let failed = waiting.wait_for(|status| status.last_error.as_ref().is_some_and(|error| error.contains("pantry")));
    tokio::time::timeout(PATIENCE, failed).await.expect("it fails").expect("it runs");
    std::fs::remove_file(obstacle).unwrap();
    until_released(&agent.running, &pantry).await;
    until("the hook has run", || ran("first pantry") == 1).await;
    for service in [&shop(), &bakery] {
        edge.answers.publish(service, with_content("two"));
    }
    until("the bakery is followed again", || agent.running.services() == [bakery.clone(), pantry.clone()]).await;
    agent.running.poll_now(&bakery);
    until("the other hook has run", || ran("second bakery") == 1).await;
    assert_eq!((ran("first bakery"), ran("first shop")), (1, 1));
    assert_eq!(world.read("content").as_deref(), Some("one"), "the directory stays");
    assert!(world.service_dir().join("unassigned-since").exists());

    agent.running.reload(Ok(config)).await.unwrap();
    until("it is followed again", || ran("first shop") == 2).await;
    assert_eq!(world.read("content").as_deref(), Some("two"));
    assert!(!world.service_dir().join("unassigned-since").exists());
    agent.until_metric("weir_agent_services", &[], 2.0).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_reload_changes_what_edges_are_asked_for() {
    let (world, edge) = World::with_edge().await;
    let [a, b]: [ServiceName; 2] = ["shop-a", "shop-b"].map(|name| name.parse().unwrap());
    for service in [&shop(), &a, &b] {
        edge.answers.publish(service, with_content("one"));
    }
    edge.answers.assign(&[&shop()]);
    let mut config = world.config(&[edge.url()]);
    config.spread = Duration::ZERO;
    config.unassign_after = Duration::ZERO;
    config.services = vec![ServiceConfig::of("shop-*".parse().unwrap())];
    let running = start(config.clone()).await.unwrap();
    until_released(&running, &a).await;
    until_released(&running, &b).await;
    until("there are events", || edge.answers.streams() == 1).await;

    // What the configuration no longer takes ends without an edge.
    edge.answers.fail_batch_polls(503);
    config.allow = vec!["*-a".parse().unwrap()];
    running.reload(Ok(config.clone())).await.unwrap();
    assert_eq!(running.services(), std::slice::from_ref(&a));
    // What it takes stays, until an edge says that it is not assigned.
    (config.list, config.services) = (ServiceList::Assigned, Vec::new());
    config.allow.clear();
    running.reload(Ok(config)).await.unwrap();
    assert_eq!(running.services(), [a]);
    edge.answers.fail_batch_polls(None);
    until("the list has come", || running.services() == [shop()]).await;
    until_released(&running, &shop()).await;
    until("there are events again", || edge.answers.streams() == 1).await;
    assert_eq!(edge.answers.batch_polls().last().unwrap().1, "", "what is assigned is asked for without patterns");
    assert!(running.drain(PATIENCE).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_asks_no_old_edge_for_what_is_new() {
    let world = World::new();
    let (old, new) = (world.edge().await, world.edge().await);
    let bakery: ServiceName = "bakery".parse().unwrap();
    for edge in [&old, &new] {
        edge.answers.assign(&[]);
        edge.answers.publish(&shop(), with_content("one"));
        edge.answers.publish(&bakery, with_content("one"));
    }
    let before = world.config(&[old.url()]);
    let mut after = world.config(&[new.url()]);
    after.services = vec![ServiceConfig::new(&bakery)];
    let running = start(before.clone()).await.unwrap();
    for (config, service) in [(&after, &bakery), (&before, &shop())].repeat(5) {
        running.reload(Ok(config.clone())).await.unwrap();
        until_released(&running, service).await;
    }
    assert!(running.drain(PATIENCE).await);
    for (edge, other) in [(&old, &bakery), (&new, &shop())] {
        let polls = edge.answers.batch_polls();
        assert!(polls.iter().all(|(_, query)| !query.contains(other.as_str())), "{polls:?}");
        assert!(
            edge.answers.seen().iter().all(|seen| !seen.path.contains(other.as_str())),
            "{:?}",
            edge.answers.seen()
        );
    }
}
