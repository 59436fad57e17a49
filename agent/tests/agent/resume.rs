//! Bodies that break off: the rest is fetched, wherever it is.

use http::{Method, StatusCode, Version};
use weir_agent::Config;
use weir_agent::config::{HttpMode, ServiceConfig};

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::{Fault, Seen, TestEdge};
use crate::relay::Relay;
use crate::tarball::Tarball;

/// A tarball that does not compress.
fn noise(seed: u8) -> Vec<u8> {
    let mut noise = vec![0; 2 << 20];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut noise);
    Tarball::new().file("noise", &noise).finish()
}

fn resumed(agent: &Agent) -> [f64; 2] {
    ["weir_agent_resumed_downloads_total", "weir_agent_resumed_bytes_total"].map(|name| agent.metric(name, &[]))
}

fn gets(edge: &TestEdge) -> Vec<Seen> {
    edge.answers.seen().into_iter().filter(|seen| seen.method == Method::GET).collect()
}

/// The first byte that a request is for.
fn start_of(request: &Seen) -> Option<f64> {
    let range = request.headers.get("range")?.to_str().unwrap();
    Some(range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap())
}

/// Two edges that have the same, and a relay to the first, whose connections end after half a body.
async fn two_edges(tar: &[u8]) -> (World, [TestEdge; 2], Relay) {
    let world = World::new();
    let edges = [world.edge().await, world.edge().await];
    for edge in &edges {
        edge.answers.publish(&shop(), tar.to_vec());
    }
    let relay = Relay::start(edges[0].address).await;
    relay.close_tcp_after(1 << 20);
    (world, edges, relay)
}

fn config(world: &World, edges: &[String]) -> Config {
    Config { http: HttpMode::H2, ..world.config(edges) }
}

async fn after_one_poll(config: Config) -> Agent {
    let mut agent = Agent::start(config).await;
    let status = agent.until("the first poll has ended", |status| status.polls > 0).await;
    assert_eq!(status.last_error, None);
    agent
}

fn assert_is_released(world: &World, seed: u8) {
    let tar = noise(seed);
    let content = std::fs::read(world.service_dir().join("current/noise")).unwrap();
    assert!(tar[512..].starts_with(&content), "the release is another one");
    world.assert_no_leftovers();
}

#[tokio::test]
async fn the_next_edge_sends_the_rest_of_a_body_whose_connection_ended() {
    let (world, [_first, second], relay) = two_edges(&noise(1)).await;
    let agent = after_one_poll(config(&world, &[relay.url(), second.url()])).await;
    assert_is_released(&world, 1);
    let requests = gets(&second);
    let start = start_of(&requests[0]).expect("a range");
    assert!(requests.len() == 1 && start > (1 << 19) as f64, "{start}");
    assert!(requests[0].headers["if-range"].to_str().unwrap().contains("+zstd."));
    assert_eq!(resumed(&agent), [1.0, start]);
    let length = second.answers.encoded(&shop()).len() as f64;
    assert_eq!(agent.metric("weir_agent_fetched_bytes_total", &[]), length, "no byte twice");
    agent.stop().await;
}

#[tokio::test]
async fn polls_and_refreshes_continue_a_body_until_it_is_whole() {
    let (world, [first, _], relay) = two_edges(&noise(1)).await;
    relay.close_tcp_after(700_000);
    let mut agent = Agent::start(config(&world, &[relay.url()])).await;
    agent.until("there is a release", |status| status.release.is_some()).await;
    assert_is_released(&world, 1);
    let starts: Vec<_> = gets(&first).iter().map(start_of).collect();
    assert!(starts.len() >= 3 && starts[0].is_none() && starts.is_sorted(), "{starts:?}");
    assert_eq!(resumed(&agent)[0], (starts.len() - 1) as f64);

    first.answers.forget();
    while agent.refresh().await.refreshes == 0 {}
    let requests = gets(&first);
    assert!(requests.iter().all(|get| get.headers["cache-control"] == "no-cache"));
    assert!(requests[1..].iter().all(|get| start_of(get).is_some()));
    agent.stop().await;
}

#[tokio::test]
async fn a_body_that_stalls_is_continued_over_any_version_of_http() {
    let (world, [first, second], _) = two_edges(&noise(1)).await;
    first.answers.fail([Fault::Stall, Fault::Stall]);
    let agent = after_one_poll(world.config(&[first.url(), second.url()])).await;
    assert_is_released(&world, 1);
    let requests = [gets(&first), gets(&second)].concat();
    let versions: Vec<_> = requests.iter().map(|get| get.version).collect();
    assert_eq!(versions, [Version::HTTP_3, Version::HTTP_2, Version::HTTP_3]);
    let length = second.answers.encoded(&shop()).len() as u64;
    let starts = [None, Some(length / 2), Some(length / 2 + (length - length / 2) / 2)];
    assert!(requests.iter().map(start_of).eq(starts.map(|start| start.map(|start| start as f64))));
    agent.stop().await;
}

#[tokio::test]
async fn another_representation_and_another_version_start_over() {
    let (world, [first, second], relay) = two_edges(&noise(1)).await;
    second.answers.recode();
    let mut agent = after_one_poll(config(&world, &[relay.url(), second.url()])).await;
    assert_is_released(&world, 1);
    let requests = gets(&second);
    assert!(requests.len() == 1 && start_of(&requests[0]).is_some(), "the whole body answers the request for a part");
    assert_eq!(resumed(&agent), [0.0, 0.0]);

    // A newer version is known from the digest poll: there is nothing to continue.
    first.answers.publish(&shop(), noise(2));
    second.answers.fail_always(Fault::Status(503, None));
    assert!(agent.poll().await.last_error.is_some());
    relay.close_tcp_after(i64::MAX);
    first.answers.publish(&shop(), noise(3));
    first.answers.forget();
    agent.running.poll_now(&shop());
    agent.until("the newer version is there", |status| status.switches == 2).await;
    assert_is_released(&world, 3);
    assert!(gets(&first).iter().all(|get| start_of(get).is_none()));
    assert_eq!(resumed(&agent), [0.0, 0.0]);
    agent.stop().await;
}

#[tokio::test]
async fn a_wrong_part_is_refused_and_the_whole_body_fetched_past_caches() {
    let (world, [_first, second], relay) = two_edges(&noise(1)).await;
    second.answers.fail([Fault::WrongPart]);
    let agent = after_one_poll(config(&world, &[relay.url(), second.url()])).await;
    assert_is_released(&world, 1);
    let requests = gets(&second);
    assert_eq!(requests.iter().map(|get| start_of(get).is_some()).collect::<Vec<_>>(), [true, false]);
    assert_eq!(requests[1].headers["cache-control"], "no-cache");
    assert_eq!(agent.metric("weir_agent_verify_failures_total", &[]), 1.0);
    agent.stop().await;
}

#[tokio::test]
async fn a_part_that_was_not_requested_is_not_taken() {
    for fault in [Fault::OtherPart, Fault::Status(StatusCode::RANGE_NOT_SATISFIABLE.as_u16(), None)] {
        let (world, [_first, second], relay) = two_edges(&noise(1)).await;
        second.answers.fail([fault]);
        let agent = after_one_poll(config(&world, &[relay.url(), second.url()])).await;
        assert_is_released(&world, 1);
        let requests = gets(&second);
        assert_eq!(requests.iter().map(|get| start_of(get).is_some()).collect::<Vec<_>>(), [true, false]);
        assert!(!requests[1].headers.contains_key("cache-control"), "no byte was wrong");
        assert_eq!((resumed(&agent), agent.metric("weir_agent_verify_failures_total", &[])), ([0.0, 0.0], 0.0));
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_download_that_trickles_lets_another_one_go_first() {
    if std::env::var_os("WEIR_NIGHTLY").is_none_or(|value| value != "1") {
        eprintln!("SKIPPED: a download trickles for ten minutes; WEIR_NIGHTLY=1 runs it");
        return;
    }
    let (world, bakery) = (World::new(), "bakery".parse().unwrap());
    let edge = world.edge().await;
    let services = vec![ServiceConfig::new(&shop()), ServiceConfig::new(&bakery)];
    let config = Config { services, max_downloads: 1, ..config(&world, &[edge.url()]) };
    let mut agent = Agent::start(config).await;
    let mut other = agent.running.service(&bakery).unwrap();
    agent.until("nothing is published", |status| status.polls > 0).await;
    other.wait_for(|status| status.polls > 0).await.unwrap();

    edge.answers.forget();
    edge.answers.publish(&shop(), noise(1));
    edge.answers.publish(&bakery, noise(2));
    edge.answers.fail([Fault::Trickle]);
    agent.running.poll_now(&shop());
    while gets(&edge).is_empty() {
        tokio::task::yield_now().await;
    }
    agent.running.poll_now(&bakery);
    other.wait_for(|status| status.release.is_some()).await.unwrap();
    agent.until("the rest is there", |status| status.release.is_some()).await;
    assert_is_released(&world, 1);
    let requests = gets(&edge);
    let started: Vec<_> = requests.iter().map(|get| (get.path.contains("bakery"), start_of(get).is_some())).collect();
    assert_eq!(started, [(false, false), (true, false), (false, true)]);
    agent.stop().await;
}
