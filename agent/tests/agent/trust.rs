//! An agent that trusts only signatures, against edges that lie, hide, repeat and delay.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use http::Method;
use serde_json::{Value, json};
use weir_agent::ServiceStatus;
use weir_agent::config::{Config, TrustConfig};
use weir_protocol::access_list::key_line;
use weir_protocol::descriptor::Selector;
use weir_protocol::digest::TarballDigest;
use weir_protocol::envelope::Envelope;
use weir_protocol::freshness::Freshness;
use weir_protocol::token::SigningKey;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::{Answers, Fault, TestEdge};
use crate::tarball::with_content;

pub(crate) fn key() -> SigningKey {
    SigningKey::generate().expect("randomness").0
}

/// Writes a file of keys as `weir-origin keys` does.
fn write_keys(world: &World, keys: &[&SigningKey]) -> PathBuf {
    let file = world.path().join("origin.pub");
    let lines: String = keys.iter().map(|key| key_line(key.public()) + "\n").collect();
    std::fs::write(&file, lines).expect("the file is written");
    file
}

pub(crate) fn trusting(world: &World, edges: &[String], keys: &[&SigningKey]) -> Config {
    let keys = write_keys(world, keys);
    let trust = vec![TrustConfig { services: "*".parse().expect("a pattern"), keys }];
    Config { trust, ..world.config(edges) }
}

/// An agent that has "one", signed as generation 5.
async fn with_signed_release(keys: &[SigningKey]) -> (World, TestEdge, Agent) {
    let (world, edge) = World::with_edge().await;
    edge.answers.publish_at(&shop(), with_content("one"), 5);
    edge.answers.sign(&shop(), keys);
    let config = trusting(&world, &[edge.url()], &keys.iter().collect::<Vec<_>>());
    let agent = Agent::with_release(config).await;
    (world, edge, agent)
}

/// The edge publishes "two" as generation 6, with a publication in its envelope that is changed.
pub(crate) fn publish_two(answers: &Answers, keys: &[SigningKey], change: impl FnOnce(&mut Value)) {
    answers.publish_at(&shop(), with_content("two"), 6);
    let mut publication = answers.publication(&shop());
    change(&mut publication);
    answers.sign_as(&shop(), &publication, keys);
}

#[tokio::test]
async fn nothing_is_accepted_that_the_origin_did_not_sign() {
    let (keys, stranger) = ([key()], [key()]);
    let (world, edge, mut agent) = with_signed_release(&keys).await;
    let (answers, one) = (&edge.answers, world.current());
    let mut refuses = async |reason: &str, label: &str, prepare: &dyn Fn()| {
        prepare();
        let before = agent.metric("weir_agent_proof_failures_total", &[("reason", label)]);
        for refresh in [false, true] {
            let status = if refresh { agent.refresh().await } else { agent.poll().await };
            let error = status.last_error.unwrap_or_else(|| panic!("it was accepted: {reason}"));
            assert!(error.contains(reason), "{reason}: {error}");
            assert_eq!((world.current(), status.release.unwrap().generation), (one.clone(), 5), "{reason}");
            world.assert_no_leftovers();
        }
        if label != "none" {
            assert_eq!(agent.metric("weir_agent_proof_failures_total", &[("reason", label)]), before + 2.0, "{reason}");
        }
    };
    refuses("not signed", "unsigned", &|| {
        answers.publish_at(&shop(), with_content("two"), 6);
    })
    .await;
    refuses("no key of `trust`", "signature", &|| publish_two(answers, &stranger, |_| {})).await;
    let forged = "the signed publication is for the service `bank`";
    refuses(forged, "service", &|| publish_two(answers, &keys, |it| it["service"] = json!("bank"))).await;
    refuses("for other clients", "selector", &|| {
        publish_two(answers, &keys, |it| it["selector"] = json!({ "ring": "canary" }));
    })
    .await;
    // Someone else's tarball, signed for this service nowhere.
    let other = TarballDigest::of(&with_content("someone else's"));
    refuses("and the origin signed", "digest", &|| publish_two(answers, &keys, |it| it["digest"] = json!(other))).await;
    // An older one, which the origin did sign.
    refuses("older than 5", "none", &|| publish_two(answers, &keys, |it| it["generation"] = json!(4))).await;
    // The right signature, and wrong bytes: none of them is unpacked.
    publish_two(answers, &keys, |_| {});
    for fault in [Fault::FlipBit, Fault::Truncate, Fault::BreakOff, Fault::Stall, Fault::Endless] {
        answers.fail_always(fault.clone());
        let status = agent.poll().await;
        assert!(status.last_error.is_some(), "{fault:?}");
        assert_eq!(world.current(), one, "{fault:?}");
        world.assert_no_leftovers();
    }
    answers.fail_always(None);
    let status = agent.poll().await;
    assert_eq!((status.last_error, world.read("content").as_deref()), (None, Some("two")));
    assert_eq!(status.release.unwrap().generation, 6);
    agent.stop().await;
}

#[tokio::test]
async fn unsigned_numbers_never_raise_the_highest_generation() {
    let keys = [key()];
    let (world, edge, mut agent) = with_signed_release(&keys).await;
    // The same content under a number that nobody signed: the edge's word alone.
    edge.answers.claim(&shop(), 999);
    let status = agent.poll().await;
    assert_eq!((status.last_error, status.release.unwrap().generation), (None, 5));
    agent.stop().await;
    let config = trusting(&world, &[edge.url()], &[&keys[0]]);
    let mut agent = Agent::with_release(config).await;
    agent.poll().await;
    publish_two(&edge.answers, &keys, |_| {});
    let status = agent.poll().await;
    assert_eq!((status.last_error, status.release.unwrap().generation), (None, 6));
    assert_eq!(world.read("content").as_deref(), Some("two"));
    // A new generation of the same content is one that the origin signed.
    edge.answers.publish_at(&shop(), with_content("two"), 8);
    edge.answers.sign(&shop(), &keys);
    assert_eq!(agent.poll().await.release.unwrap().generation, 8);
    agent.stop().await;
}

#[tokio::test]
async fn an_unchanged_publication_is_verified_once() {
    let keys = [key()];
    let (_world, edge, mut agent) = with_signed_release(&keys).await;
    agent.poll().await;
    edge.answers.forget();
    agent.poll().await;
    let seen = edge.answers.seen();
    assert!(seen.len() == 1 && seen[0].method == Method::HEAD, "{seen:?}");
    agent.stop().await;
}

#[tokio::test]
async fn a_changed_file_of_keys_applies_without_a_signal() {
    let (old, new) = ([key()], [key()]);
    let (world, edge, mut agent) = with_signed_release(&old).await;
    write_keys(&world, &[&new[0]]);
    // What is in force stays, and is not confirmed any longer.
    let refused = loop {
        if let Some(error) = agent.poll().await.last_error {
            break error;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(refused.contains("no key of `trust`"), "{refused}");
    assert_eq!(world.read("content").as_deref(), Some("one"));
    edge.answers.sign(&shop(), &new);
    assert_eq!(agent.poll().await.last_error, None);
    agent.stop().await;
}

#[tokio::test]
async fn a_service_that_no_entry_names_and_a_file_without_keys_are_refused() {
    let (world, edge) = World::with_edge().await;
    let mut config = trusting(&world, &[edge.url()], &[&key()]);
    config.trust[0].services = "bank-*".parse().unwrap();
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("names the service `shop`"), "{error}");
    config.trust[0].services = "shop".parse().unwrap();
    config.trust[0].keys = world.path().join("missing");
    let error = weir_agent::start(config).await.err().expect("it has no keys");
    assert!(format!("{error:#}").contains("`trust`"), "{error:#}");
}

/// What an origin says now, or said so many seconds ago.
pub(crate) fn statement(generation: u64, content: &str, seconds_ago: u64) -> Freshness {
    Freshness {
        service: shop(),
        selector: Selector,
        generation,
        digest: TarballDigest::of(&with_content(content)),
        time: SystemTime::now() - Duration::from_secs(seconds_ago),
        upstream_unreachable_since: None,
    }
}

/// Waits for the next statement, good or bad.
async fn proved(agent: &mut Agent, what: &str, wanted: impl Fn(Option<&str>) -> bool) -> ServiceStatus {
    agent.running.prove_now();
    let is_wanted = |status: &ServiceStatus| {
        wanted(status.freshness(SystemTime::now()).and_then(|assessed| assessed.problem).as_deref())
    };
    agent.until(what, is_wanted).await
}

#[tokio::test]
async fn statements_of_freshness_show_what_an_edge_withholds() {
    let (keys, stranger) = ([key()], [key()]);
    let (world, edge, mut agent) = with_signed_release(&keys).await;
    let answers = &edge.answers;
    let unreachable = SystemTime::now() - Duration::from_secs(3600);
    let first = Freshness { upstream_unreachable_since: Some(unreachable), ..statement(5, "one", 5) };
    answers.state_freshness(&shop(), first.sign(&keys));
    agent.running.prove_now();
    let is_current = |status: &ServiceStatus| {
        status.freshness(SystemTime::now()).is_some_and(|assessed| assessed.current_at.is_some())
    };
    let assessed = agent.until("there is a proof", is_current).await.freshness(SystemTime::now()).unwrap();
    assert_eq!((assessed.newest_generation, assessed.problem), (Some(5), None));
    assert!(assessed.upstream_unreachable_since.is_some());
    assert_eq!(agent.metric("weir_agent_upstream_unreachable", &[]), 1.0);
    assert!(agent.metric("weir_agent_proof_current_timestamp_seconds", &[]) > 1_700_000_000.0);
    let requests: Vec<_> = answers.seen().into_iter().filter(|seen| seen.path.ends_with("/heartbeats")).collect();
    assert!(requests.iter().all(|seen| seen.method == Method::POST));

    let of_bank = || Freshness { service: "bank".parse().unwrap(), ..statement(5, "one", 0) };
    // Signed when it is their turn: what is a moment older than the last proves nothing, and is no error.
    let bad: [(&str, &dyn Fn() -> Envelope); 5] = [
        ("no key of `trust`", &|| statement(5, "one", 0).sign(&stranger)),
        ("is for the service `bank`", &|| of_bank().sign(&keys)),
        ("a replay", &|| statement(5, "one", 300).sign(&keys)),
        ("back to generation 4", &|| statement(4, "zero", 0).sign(&keys)),
        ("two digests under generation 5", &|| statement(5, "other", 0).sign(&keys)),
    ];
    for (what, envelope) in bad {
        answers.state_freshness(&shop(), envelope());
        proved(&mut agent, what, |problem| problem.is_some_and(|problem| problem.contains(what))).await;
        assert_eq!(agent.metric("weir_agent_proof_degraded", &[]), 1.0, "{what}");
        answers.state_freshness(&shop(), statement(5, "one", 0).sign(&keys));
        proved(&mut agent, "it is proved again", |problem| problem.is_none()).await;
    }
    assert_eq!(agent.metric("weir_agent_proof_failures_total", &[]), 5.0);

    // The edge is frozen: it goes on saying "unchanged", and passes on what the origin signed meanwhile.
    answers.state_freshness(&shop(), statement(7, "two", 0).sign(&keys));
    agent.running.prove_now();
    let is_known = |status: &ServiceStatus| {
        status.freshness(SystemTime::now()).is_some_and(|assessed| assessed.newest_generation == Some(7))
    };
    let status = agent.until("the newer generation is known", is_known).await;
    assert_eq!(agent.poll().await.last_error, None, "nothing is wrong with the poll");
    let problem_in =
        |minutes: u64| status.freshness(SystemTime::now() + Duration::from_secs(60 * minutes)).unwrap().problem;
    assert_eq!(problem_in(5), None);
    let problem = problem_in(11).unwrap();
    assert!(problem.contains("withheld") && problem.contains("generation 7"), "{problem}");
    assert_eq!(world.read("content").as_deref(), Some("one"));
    agent.stop().await;
}

#[tokio::test]
async fn an_old_statement_and_none_at_all_are_degraded() {
    let keys = [key()];
    let (_world, edge, mut agent) = with_signed_release(&keys).await;
    let status = agent.status.borrow().clone();
    let later = SystemTime::now() + Duration::from_secs(11 * 60);
    assert!(status.freshness(later).unwrap().problem.unwrap().contains("since the start"));
    edge.answers.state_freshness(&shop(), statement(5, "one", 11 * 60).sign(&keys));
    proved(&mut agent, "the statement is old", |problem| {
        problem.is_some_and(|it| it.contains("newest freshness statement"))
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn what_one_edge_cannot_prove_the_next_one_may() {
    let (world, keys) = (World::new(), [key()]);
    let (first, second) = (world.edge().await, world.edge().await);
    for edge in [&first, &second] {
        edge.answers.publish_at(&shop(), with_content("one"), 5);
        edge.answers.sign(&shop(), &keys);
    }
    let mut agent = Agent::with_release(trusting(&world, &[first.url(), second.url()], &[&keys[0]])).await;
    let proved_until = |status: &ServiceStatus| status.freshness(SystemTime::now()).and_then(|it| it.current_at);
    let ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
    let of_docs = || Freshness { service: "docs".parse().unwrap(), ..statement(5, "one", 0) };
    // The first has none, then an old one, then a young one of another service.
    for (step, seconds) in [(None, 40), (Some(statement(5, "one", 90)), 20), (Some(of_docs()), 10)] {
        if let Some(statement) = step {
            first.answers.state_freshness(&shop(), statement.sign(&keys));
        }
        second.answers.state_freshness(&shop(), statement(5, "one", seconds).sign(&keys));
        agent.running.prove_now();
        let limit = ago(seconds + 5);
        agent.until("the second proves it", |status| proved_until(status).is_some_and(|until| until > limit)).await;
    }
    let asked = |edge: &TestEdge| edge.answers.seen().iter().filter(|seen| seen.path.ends_with("/heartbeats")).count();
    first.answers.state_freshness(&shop(), statement(5, "one", 1).sign(&keys));
    let before = asked(&second);
    agent.running.prove_now();
    let limit = ago(10);
    agent.until("the first proves it", |status| proved_until(status).is_some_and(|until| until > limit)).await;
    assert_eq!(asked(&second), before, "a young statement is enough");
    agent.stop().await;
}
