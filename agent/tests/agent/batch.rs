//! One request for all services, and the events of an edge.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use http::{Method, Version};
use weir_agent::config::{DEFAULT_SPREAD, HttpMode, ServiceConfig};
use weir_protocol::agent_event::AgentEventKind;
use weir_protocol::event::Upstream;

use crate::agent_under_test::{Agent, NEVER, World, shop};
use crate::edge::Answers;
use crate::relay::Relay;
use crate::tarball::with_content;

/// Waits until there are as many batch polls as wanted.
async fn until_polls(agent: &Agent, result: &str, wanted: f64) {
    agent.until_metric("weir_agent_batch_polls_total", &[("result", result)], wanted).await;
}

/// Waits for open streams.
async fn until_streams(answers: &Answers, wanted: usize) {
    let open = async {
        while answers.streams() != wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(crate::edge::PATIENCE, open).await.expect("the streams are open");
}

#[tokio::test]
async fn a_batch_poll_takes_the_place_of_single_ones() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[]);
    let bakery = "bakery".parse().unwrap();
    edge.answers.publish(&bakery, with_content("bread"));
    let mut config = world.config(&[edge.url()]);
    config.services.push(ServiceConfig::new(&bakery));
    config.poll_interval = Duration::from_secs(1);
    config.spread = Duration::ZERO;
    let mut agent = Agent::with_release(config).await;
    let mut other = agent.running.service(&bakery).unwrap();
    other.wait_for(|status| status.release.is_some()).await.unwrap();
    agent.until("it was confirmed", |status| status.unchanged >= 1).await;
    other.wait_for(|status| status.unchanged >= 1).await.unwrap();
    edge.answers.forget();
    let confirmed = agent.status.borrow().polls;
    agent.until("it is confirmed again and again", |status| status.polls >= confirmed + 3).await;
    assert_eq!(edge.answers.seen().len(), 0, "no service was polled by itself");
    let polls = edge.answers.batch_polls();
    assert!(polls.iter().all(|(_, query)| query == "services=shop,bakery"), "{polls:?}");
    assert_eq!(polls.iter().filter(|(status, _)| *status == 200).count(), 1, "{polls:?}");
    assert!(polls.iter().filter(|(status, _)| *status == 304).count() >= 3, "{polls:?}");

    // The row of one changes: that one is polled.
    edge.answers.publish(&shop(), with_content("two"));
    agent.until("it has switched", |status| status.switches == 2).await;
    assert!(edge.answers.seen().iter().all(|seen| seen.path == "/v1/services/shop/tarball"));
    assert_eq!(world.read("content").as_deref(), Some("two"));
    agent.stop().await;
}

#[tokio::test]
async fn a_kept_release_that_nobody_changed_is_not_fetched_again() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[]);
    let mut config = world.config(&[edge.url()]);
    config.spread = Duration::ZERO;
    let mut agent = Agent::with_release(config).await;
    until_streams(&edge.answers, 1).await;
    for (content, is_changed, is_fetched) in
        [("two", None, true), ("one", None, false), ("two", Some("its bytes"), true), ("one", Some("its mode"), true)]
    {
        let (digest, _) = edge.answers.publish(&shop(), with_content(content));
        let kept = world.service_dir().join("releases").join(digest.to_string()).join("content");
        match is_changed {
            Some("its bytes") => {
                std::fs::remove_file(&kept).unwrap();
                std::fs::write(&kept, "owt").unwrap();
            }
            Some(_) => std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o666)).unwrap(),
            None => {}
        }
        edge.answers.forget();
        edge.answers.send(AgentEventKind::Changed(edge.answers.row(&shop())));
        agent.until("it has switched", |status| status.release.as_ref().is_some_and(|at| at.digest == digest)).await;
        let fetched = edge.answers.seen().iter().any(|seen| seen.method == Method::GET);
        assert_eq!((world.read("content").as_deref(), fetched), (Some(content), is_fetched));
    }
    agent.stop().await;
}

#[tokio::test]
async fn no_edge_prolongs_the_spread() {
    for (own, of_edge) in [(DEFAULT_SPREAD, Duration::ZERO), (Duration::ZERO, NEVER)] {
        let (world, edge) = World::offering("one").await;
        edge.answers.assign(&[]);
        let mut config = world.config(&[edge.url()]);
        config.spread = own;
        let mut agent = Agent::with_release(config).await;
        until_streams(&edge.answers, 1).await;
        edge.answers.publish(&shop(), with_content("two"));
        edge.answers.send_within(Some(of_edge), AgentEventKind::Changed(edge.answers.row(&shop())));
        agent.until("it has switched", |status| status.switches == 2).await;
        edge.answers.publish(&shop(), with_content("three"));
        edge.answers.send_within(Some(of_edge), AgentEventKind::Resync);
        agent.until("a batch poll found it", |status| status.switches == 3).await;
        agent.stop().await;
    }
}

#[tokio::test]
async fn that_git_is_unreachable_is_seen_without_trust() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[]);
    let mut config = world.config(&[edge.url()]);
    config.spread = Duration::ZERO;
    let mut agent = Agent::with_release(config).await;
    until_streams(&edge.answers, 1).await;
    let since = std::time::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    for reachable in [false, true] {
        let upstream = Upstream { reachable, since };
        edge.answers.send(AgentEventKind::Upstream { services: vec![shop()], upstream });
        let expected = (!reachable).then_some(since);
        agent.until("it is told", |status| status.upstream_unreachable_since == expected).await;
        agent.until_metric("weir_agent_upstream_unreachable", &[], f64::from(u8::from(!reachable))).await;
    }
    agent.stop().await;
}

#[tokio::test]
async fn an_unsigned_generation_is_never_the_highest() {
    let (world, edge) = World::with_edge().await;
    edge.answers.assign(&[]);
    let digest = edge.answers.publish_at(&shop(), with_content("one"), 5);
    let mut config = world.config(&[edge.url()]);
    config.spread = Duration::ZERO;
    let mut agent = Agent::with_release(config).await;
    until_streams(&edge.answers, 1).await;
    let lie = |generation| {
        let mut row = edge.answers.row(&shop());
        (row.generation, row.digest) = (Some(generation), Some(digest));
        AgentEventKind::Changed(row)
    };
    let polls = agent.status.borrow().polls;
    edge.answers.send(lie(u64::MAX));
    agent.until("it has polled by itself", |status| status.polls > polls && status.last_error.is_none()).await;
    // It would be refused, had the row counted.
    edge.answers.publish_at(&shop(), with_content("two"), 6);
    edge.answers.send(AgentEventKind::Changed(edge.answers.row(&shop())));
    agent.until("it has switched", |status| status.switches == 2).await;
    // An older generation is refused, and not confirmed.
    edge.answers.publish_at(&shop(), with_content("two"), 4);
    edge.answers.send(AgentEventKind::Changed(edge.answers.row(&shop())));
    let refused = agent.until("it is refused", |status| status.last_error.is_some()).await;
    assert!(refused.last_error.unwrap().contains("generation 4"));
    agent.stop().await;
}

#[tokio::test]
async fn a_generation_of_the_far_future_is_refused_and_one_on_disk_is_ignored() {
    let (world, edge, _, mut agent) = World::following(with_content("one")).await;
    edge.answers.publish_at(&shop(), with_content("two"), u64::MAX);
    let refused = agent.poll().await.last_error.expect("it is refused");
    assert!(refused.contains("18446744073709551615") && refused.contains("clock"), "{refused}");
    assert_eq!(agent.metric("weir_agent_errors_total", &[("kind", "generation")]), 1.0);
    edge.answers.publish_at(&shop(), with_content("two"), 2);
    assert_eq!(agent.poll().await.switches, 2);
    agent.stop().await;
    // As an agent has left it that took such a generation.
    let state = world.service_dir().join("state");
    let text = std::fs::read_to_string(&state).unwrap();
    std::fs::write(&state, text.replace("generation\": 2,", "generation\": 18446744073709551615,")).unwrap();
    edge.answers.publish_at(&shop(), with_content("three"), 3);
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    agent.until("it has switched", |status| status.switches == 1 || status.errors > 0).await;
    assert_eq!(world.read("content").as_deref(), Some("three"));
    edge.answers.publish_at(&shop(), with_content("old"), 2);
    assert!(agent.poll().await.last_error.expect("it is refused").contains("generation 2"));
    agent.stop().await;
}

#[tokio::test]
async fn an_event_is_followed_at_once_and_a_stream_that_ends_is_opened_again() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[]);
    let mut config = world.config(&[edge.url()]);
    config.spread = Duration::ZERO;
    assert_eq!(config.poll_interval, NEVER);
    let mut agent = Agent::with_release(config).await;
    for (number, content) in ["two", "three"].into_iter().enumerate() {
        until_streams(&edge.answers, 1).await;
        agent.until_metric("weir_agent_event_stream_connected", &[], 1.0).await;
        edge.answers.publish(&shop(), with_content(content));
        edge.answers.send(AgentEventKind::Changed(edge.answers.row(&shop())));
        let switched = agent.until("it has switched", |status| status.switches == number as u64 + 2).await;
        assert_eq!(switched.offered, edge.answers.row(&shop()).revision_id);
        edge.answers.end_streams();
    }
    // What happened in between is found by a batch poll.
    until_streams(&edge.answers, 1).await;
    edge.answers.publish(&shop(), with_content("four"));
    edge.answers.send(AgentEventKind::Resync);
    agent.until("it has switched", |status| status.switches == 4).await;
    assert_eq!(world.read("content").as_deref(), Some("four"));
    agent.stop().await;
}

#[tokio::test]
async fn the_stream_is_opened_again_once_a_poll_finds_its_connection_dead() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[]);
    let relay = Relay::start(edge.address).await;
    let mut agent = Agent::with_release(world.config(&[relay.url()])).await;
    until_streams(&edge.answers, 1).await;
    // As when the machine of the edge has gone: nobody closes anything.
    relay.open_udp(false);
    agent.poll().await;
    // The edge does not know that the first one has ended.
    until_streams(&edge.answers, 2).await;
    agent.stop().await;
}

#[tokio::test]
async fn without_batch_polls_each_service_is_polled_by_itself() {
    let (world, edge) = World::offering("one").await;
    let mut config = world.config(&[edge.url()]);
    config.poll_interval = Duration::from_secs(1);
    let mut agent = Agent::with_release(config).await;
    until_polls(&agent, "unavailable", 1.0).await;
    edge.answers.publish(&shop(), with_content("two"));
    agent.until("a single poll has found it", |status| status.switches == 2).await;
    assert!(edge.answers.seen().iter().any(|seen| seen.method == Method::HEAD));
    assert_eq!(agent.metric("weir_agent_batch_polls_total", &[("result", "unavailable")]), 1.0, "not asked again");
    agent.stop().await;
}

#[tokio::test]
async fn while_batch_polls_fail_services_are_polled_by_themselves() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[]);
    let mut config = world.config(&[edge.url()]);
    config.poll_interval = Duration::from_secs(1);
    config.spread = Duration::ZERO;
    let mut agent = Agent::with_release(config).await;
    agent.until("it was confirmed", |status| status.unchanged >= 1).await;
    edge.answers.fail_batch_polls(503);
    edge.answers.publish(&shop(), with_content("two"));
    agent.until("a single poll has found it", |status| status.switches == 2).await;
    edge.answers.fail_batch_polls(None);
    let before = agent.metric("weir_agent_batch_polls_total", &[("result", "unchanged")]);
    agent.until("it is confirmed", |status| status.unchanged > 3).await;
    assert!(agent.metric("weir_agent_batch_polls_total", &[("result", "unchanged")]) > before);
    agent.stop().await;
}

/// Sends heartbeats until the streams that were opened are as wanted.
async fn until_opened(answers: &Answers, wanted: impl Fn(&[Version]) -> bool) {
    let opened = async {
        while !wanted(&answers.opened_streams()) {
            answers.send(AgentEventKind::Heartbeat);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(crate::edge::PATIENCE, opened).await.expect("another stream is opened");
}

#[tokio::test]
async fn an_event_stream_gets_a_new_connection_when_its_own_is_old() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[]);
    let mut config = world.config(&[edge.url()]);
    config.max_connection_age = Duration::from_secs(1);
    config.http = HttpMode::H3;
    let agent = Agent::with_release(config).await;
    until_opened(&edge.answers, |opened| opened.len() >= 3).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_event_stream_over_http2_goes_to_http3_when_that_works() {
    let (world, edge) = World::with_edge().await;
    let relay = Relay::start(edge.address).await;
    relay.delay_udp(Duration::from_secs(5));
    edge.answers.assign(&[]);
    edge.answers.publish(&shop(), with_content("one"));
    let mut agent = Agent::with_release(world.config(&[relay.url()])).await;
    until_opened(&edge.answers, |opened| opened == [Version::HTTP_2]).await;
    relay.delay_udp(Duration::ZERO);
    agent.until_http3().await;
    until_opened(&edge.answers, |opened| opened == [Version::HTTP_2, Version::HTTP_3]).await;
    agent.stop().await;
}
