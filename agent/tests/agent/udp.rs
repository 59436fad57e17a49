//! UDP that does not get through, from the start and in the middle, and that comes back.

use std::time::Duration;

use http::{Method, Version};
use weir_agent::Protocol;
use weir_agent::config::HttpMode;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::Fault;
use crate::relay::Relay;
use crate::tarball::{Tarball, with_content};

#[tokio::test]
async fn http2_is_used_while_udp_is_blocked_from_the_start() {
    let (world, edge) = World::with_edge().await;
    let relay = Relay::start(edge.address).await;
    relay.open_udp(false);
    edge.answers.publish(&shop(), with_content("one"));
    let mut config = world.config(&[relay.url()]);
    config.h3_connect_timeout = Duration::from_millis(400);
    config.h3_retry_interval = Duration::from_secs(1);
    let mut agent = Agent::start(config).await;
    let status = agent.until("the first poll has ended", |status| status.polls > 0).await;
    assert_eq!((status.protocol, status.errors), (Some(Protocol::H2), 0));
    assert_eq!(world.read("content").as_deref(), Some("one"));
    agent.until_metric("weir_agent_http3_usable", &[("edge", &relay.url())], 0.0).await;
    assert_eq!(agent.metric("weir_agent_requests_total", &[("protocol", "h3")]), 0.0);
    assert!(agent.metric("weir_agent_requests_total", &[("protocol", "h2")]) >= 1.0);

    relay.open_udp(true);
    agent.until_http3().await;
    assert_eq!(agent.metric("weir_agent_http3_usable", &[]), 1.0);
    assert_eq!(agent.status.borrow().errors, 0);
    agent.stop().await;
}

#[tokio::test]
async fn http2_is_used_when_udp_fails_under_a_connection() {
    let (world, edge) = World::with_edge().await;
    let relay = Relay::start(edge.address).await;
    edge.answers.publish(&shop(), with_content("one"));
    let mut config = world.config(&[relay.url()]);
    config.h3_connect_timeout = Duration::from_secs(2);
    let mut agent = Agent::with_release(config).await;
    agent.until_http3().await;

    relay.open_udp(false);
    edge.answers.publish(&shop(), with_content("two"));
    let status = agent.poll().await;
    assert_eq!((status.protocol, status.errors), (Some(Protocol::H2), 0), "within the poll");
    assert_eq!(world.read("content").as_deref(), Some("two"));
    agent.until_metric("weir_agent_http3_usable", &[], 0.0).await;
    // Remembered: the next poll does not try.
    edge.answers.forget();
    relay.open_udp(true);
    agent.poll().await;
    assert_eq!(edge.answers.count(&Method::HEAD, Version::HTTP_2), 1);
    agent.stop().await;
}

#[tokio::test]
async fn a_body_that_stalls_over_http3_is_fetched_over_http2() {
    let (world, edge) = World::offering("one").await;
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    agent.until_http3().await;
    edge.answers.forget();
    edge.answers.publish(&shop(), with_content("x".repeat(300_000)));
    edge.answers.fail([Fault::Stall]);
    let status = agent.poll().await;
    assert_eq!((status.protocol, status.errors), (Some(Protocol::H2), 0));
    assert_eq!(edge.answers.count(&Method::GET, Version::HTTP_3), 1);
    assert_eq!(edge.answers.count(&Method::GET, Version::HTTP_2), 1);
    let seen = edge.answers.seen();
    let second = seen.iter().find(|seen| seen.method == Method::GET && seen.version == Version::HTTP_2).unwrap();
    assert!(second.headers.contains_key("range"), "only the rest");
    agent.stop().await;
}

#[tokio::test]
async fn a_configured_http_version_is_the_only_one_used() {
    let (world, edge) = World::offering("one").await;
    for (mode, protocol, version) in
        [(HttpMode::H2, Protocol::H2, Version::HTTP_3), (HttpMode::H3, Protocol::H3, Version::HTTP_2)]
    {
        edge.answers.forget();
        let mut config = world.config(&[edge.url()]);
        config.http = mode;
        let mut agent = Agent::start(config).await;
        let status = agent.until("the first poll has ended", |status| status.polls > 0).await;
        assert_eq!(status.protocol, Some(protocol));
        assert!(edge.answers.seen().iter().all(|seen| seen.version != version));
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_restarted_edge_is_reached_over_http3_again() {
    let (world, edge, _, mut agent) = World::following(with_content("one")).await;
    let port = edge.address.port();
    let answers = edge.cut().await;
    let status = agent.poll().await;
    assert!(status.last_error.is_some() && status.last_error_retryable);
    assert_eq!(world.read("content").as_deref(), Some("one"), "the last good release stays");
    answers.publish(&shop(), with_content("two"));
    let edge = crate::edge::TestEdge::start_with(world.path(), answers, Some(port)).await;
    agent.until("the agent is back by itself", |status| status.switches == 2).await;
    assert_ne!(agent.metric_if_any("weir_agent_http3_usable", &[]), Some(0.0), "an edge that is away says nothing");
    agent.until_http3().await;
    drop(edge);
    agent.stop().await;
}

#[tokio::test]
async fn http2_is_used_when_udp_fails_during_a_download() {
    let (world, edge) = World::with_edge().await;
    let relay = Relay::start(edge.address).await;
    edge.answers.publish(&shop(), with_content("one"));
    let mut agent = Agent::with_release(world.config(&[relay.url()])).await;
    agent.until_http3().await;
    edge.answers.forget();
    // Nothing that compresses: some megabytes have to cross.
    let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(4 << 20).collect();
    edge.answers.publish(&shop(), Tarball::new().file("noise", &noise).finish());
    relay.cut_udp_after(1 << 20);
    let status = agent.poll().await;
    assert_eq!((status.protocol, status.errors), (Some(Protocol::H2), 0), "within the poll");
    assert_eq!(std::fs::read(world.service_dir().join("current/noise")).unwrap(), noise);
    assert_eq!(edge.answers.count(&Method::GET, Version::HTTP_2), 1);
    assert_eq!(agent.metric("weir_agent_verify_failures_total", &[]), 0.0);
    world.assert_no_leftovers();
    agent.stop().await;
}

#[tokio::test]
async fn a_slow_edge_does_not_mark_udp_as_blocked() {
    let (world, edge) = World::offering("one").await;
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    agent.until_http3().await;
    // Longer than UDP may be silent, twice.
    edge.answers.forget();
    edge.answers.fail([Fault::Late(Duration::from_secs(7))]);
    let status = agent.refresh().await;
    assert_eq!((status.protocol, status.errors), (Some(Protocol::H3), 0));
    assert_eq!(edge.answers.seen().len(), 1, "one request, which waits");

    // Nor does one that is slower than the agent's patience; another one may be faster.
    let mut config = world.config(&[edge.url()]);
    config.fetch_timeout = Duration::from_secs(1);
    config.root = world.path().join("another");
    let mut other = Agent::with_release(config).await;
    other.until_http3().await;
    edge.answers.forget();
    edge.answers.fail_always(Fault::Late(Duration::from_secs(3600)));
    assert!(other.refresh().await.last_error.unwrap().contains("did not answer within 1s"));
    assert_eq!(edge.answers.seen().len(), 1);
    assert_eq!(other.metric("weir_agent_http3_usable", &[]), 1.0);
    assert_eq!(other.metric("weir_agent_errors_total", &[("kind", "slow")]), 1.0);
    other.running.cut().await;
    agent.running.cut().await;
}

#[tokio::test]
async fn requests_do_not_wait_for_a_slow_handshake_and_use_http3_after_it() {
    let (world, edge) = World::with_edge().await;
    let relay = Relay::start(edge.address).await;
    relay.delay_udp(Duration::from_secs(1));
    edge.answers.publish(&shop(), with_content("one"));
    let mut agent = Agent::start(world.config(&[relay.url()])).await;
    let status = agent.until("the first poll has ended", |status| status.polls > 0).await;
    assert_eq!((status.protocol, status.errors), (Some(Protocol::H2), 0), "a handshake takes a second at least");
    assert_eq!(edge.answers.seen().len(), 1, "the handshakes race, not the requests");
    agent.until_http3().await;
    assert_eq!(agent.metric("weir_agent_http3_usable", &[]), 1.0);
    let polls = agent.status.borrow().polls as usize;
    assert_eq!(edge.answers.seen().len(), polls, "no request was sent twice");
    agent.stop().await;
}

#[tokio::test]
async fn each_edge_says_for_itself_whether_http3_works() {
    let world = World::new();
    let (first, second) = (world.edge().await, world.edge().await);
    let relay = Relay::start(first.address).await;
    relay.open_udp(false);
    first.answers.publish(&shop(), with_content("one"));
    second.answers.publish(&shop(), with_content("one"));
    let usable = |agent: &Agent, url: &str| agent.metric_if_any("weir_agent_http3_usable", &[("edge", url)]);

    let mut config = world.config(&[relay.url()]);
    config.http = HttpMode::H2;
    let agent = Agent::with_release(config.clone()).await;
    assert_eq!(usable(&agent, &relay.url()), None, "it was never tried");
    agent.stop().await;

    config.http = HttpMode::Auto;
    config.h3_connect_timeout = Duration::from_millis(400);
    config.edges.push(second.url().parse().unwrap());
    let mut agent = Agent::with_release(config.clone()).await;
    agent.until_metric("weir_agent_http3_usable", &[("edge", &relay.url())], 0.0).await;
    first.answers.fail_always(Fault::Status(503, None));
    agent.until_http3().await;
    assert_eq!(usable(&agent, &second.url()), Some(1.0));
    assert_eq!(usable(&agent, &relay.url()), Some(0.0));
    // What is no longer configured has no series.
    config.edges.remove(0);
    agent.running.reload(Ok(config)).await.unwrap();
    agent.until_http3().await;
    assert_eq!(usable(&agent, &second.url()), Some(1.0));
    assert_eq!(agent.metric("weir_agent_edge_preferred", &[]), 1.0);
    assert_eq!(usable(&agent, &relay.url()), None);
    agent.stop().await;
}
