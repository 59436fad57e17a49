//! Edges that lie, hide, repeat and delay, one by one. Whatever an edge does, `current` is one complete release that the
//! origin signed, and the agent says what is wrong: in `/readyz`, in `/status` and in a metric.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use serde_json::{Value, json};
use weir_agent::ServiceStatus;
use weir_protocol::agent_event::AgentEventKind;
use weir_protocol::digest::TarballDigest;
use weir_protocol::freshness::Freshness;
use weir_protocol::token::SigningKey;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::{Answers, Fault};
use crate::tarball::with_content;
use crate::trust::{key, publish_two, statement, trusting};

/// What an edge does to an agent that has "one", signed as generation 5.
struct Lie {
    what: &'static str,
    tell: fn(&Answers, &Keys),
    /// What the agent says of it.
    reason: &'static str,
    /// The metric that counts or shows it, and its labels.
    metric: (&'static str, &'static [(&'static str, &'static str)]),
}

struct Keys {
    own: [SigningKey; 1],
    stranger: [SigningKey; 1],
}

const PROOFS: &str = "weir_agent_proof_failures_total";
const ERRORS: &str = "weir_agent_errors_total";
const MISMATCHES: &str = "weir_agent_verify_failures_total";

/// The next release is right but for its bytes.
fn two_with(answers: &Answers, keys: &Keys, fault: Fault) {
    publish_two(answers, &keys.own, |_| {});
    answers.fail_always(Fault::InTarball(Box::new(fault)));
}

fn state(answers: &Answers, statement: &Freshness, keys: &[SigningKey]) {
    answers.state_freshness(&shop(), statement.sign(keys));
}

fn lies() -> Vec<Lie> {
    let lie = |what, tell, reason, metric| Lie { what, tell, reason, metric };
    vec![
        lie(
            "wrong bytes",
            |edge, keys| two_with(edge, keys, Fault::FlipBit),
            "the tarball's digest is",
            (MISMATCHES, &[]),
        ),
        lie(
            "truncated",
            |edge, keys| two_with(edge, keys, Fault::Truncate),
            "the tarball cannot be decoded",
            (ERRORS, &[("kind", "verify")]),
        ),
        lie(
            "a truncated descriptor",
            |edge, keys| {
                publish_two(edge, &keys.own, |_| {});
                edge.fail_always(Fault::Truncate);
            },
            "the descriptor cannot be read",
            (PROOFS, &[("reason", "malformed")]),
        ),
        lie(
            "broken off",
            |edge, keys| two_with(edge, keys, Fault::BreakOff),
            "aborted",
            (ERRORS, &[("kind", "broken")]),
        ),
        lie(
            "endless",
            |edge, keys| two_with(edge, keys, Fault::Endless),
            "cannot be decoded",
            (ERRORS, &[("kind", "verify")]),
        ),
        lie(
            "slow",
            |edge, keys| two_with(edge, keys, Fault::Stall),
            "no data from the edge",
            (ERRORS, &[("kind", "silent")]),
        ),
        lie(
            "someone else's tarball",
            |edge, keys| {
                let other = TarballDigest::of(&with_content("someone else's"));
                publish_two(edge, &keys.own, |publication| publication["digest"] = json!(other));
            },
            "and the origin signed",
            (PROOFS, &[("reason", "digest")]),
        ),
        lie(
            "someone else's tarball under a signed digest",
            |edge, keys| {
                publish_two(edge, &keys.own, |_| {});
                edge.swap_bytes(&shop(), with_content("someone else's"));
            },
            "the tarball's digest is",
            (MISMATCHES, &[]),
        ),
        lie(
            "an older generation",
            |edge, keys| {
                edge.publish_at(&shop(), with_content("zero"), 4);
                edge.sign(&shop(), &keys.own);
            },
            "generation 4",
            (ERRORS, &[("kind", "generation")]),
        ),
        lie(
            "an older publication under a new number",
            |edge, keys| publish_two(edge, &keys.own, |publication| publication["generation"] = json!(4)),
            "older than 5",
            (ERRORS, &[("kind", "generation")]),
        ),
        lie(
            "a missing signature",
            |edge, _| {
                edge.publish_at(&shop(), with_content("two"), 6);
            },
            "not signed",
            (PROOFS, &[("reason", "unsigned")]),
        ),
        lie(
            "a forged signature",
            |edge, keys| publish_two(edge, &keys.stranger, |_| {}),
            "no key of `trust`",
            (PROOFS, &[("reason", "signature")]),
        ),
        lie(
            "another's publication",
            |edge, keys| publish_two(edge, &keys.own, |publication| publication["service"] = json!("bank")),
            "for the service `bank`",
            (PROOFS, &[("reason", "service")]),
        ),
        lie(
            "another's selector",
            |edge, keys| {
                publish_two(edge, &keys.own, |publication| publication["selector"] = json!({ "ring": "canary" }));
            },
            "for other clients",
            (PROOFS, &[("reason", "selector")]),
        ),
        lie(
            "a forged freshness statement",
            |edge, keys| state(edge, &statement(5, "one", 0), &keys.stranger),
            "no key of `trust`",
            (PROOFS, &[("reason", "signature")]),
        ),
        lie(
            "a statement of an older generation",
            |edge, keys| state(edge, &statement(4, "zero", 0), &keys.own),
            "back to generation 4",
            (PROOFS, &[("reason", "generation")]),
        ),
        lie(
            "a replayed freshness statement",
            |edge, keys| state(edge, &statement(5, "one", 300), &keys.own),
            "a replay",
            (PROOFS, &[("reason", "replayed")]),
        ),
    ]
}

/// What is wrong with the service, by the agent's own word.
fn problem(status: &ServiceStatus) -> String {
    let unproved = status.freshness(SystemTime::now()).and_then(|assessed| assessed.problem);
    [status.last_error.clone(), unproved].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// The agent is degraded for this reason, and says so wherever it is asked.
async fn assert_degraded(agent: &Agent, what: &str, reason: &str) {
    let (code, ready) = agent.admin("/readyz").await;
    assert!(code == 200 && ready.contains("\ndegraded: ") && ready.contains(reason), "{what}: {ready}");
    let status: Value = serde_json::from_str(&agent.admin("/status").await.1).expect("JSON");
    assert!(status["reasons"].to_string().contains(reason), "{what}: {status:#}");
    let service = &status["services"]["shop"];
    let problem = [&service["last_error"], &service["proof"]["problem"]];
    assert!(problem.iter().any(|text| text.as_str().is_some_and(|text| text.contains(reason))), "{what}: {service:#}");
}

/// An agent that has "one", signed as generation 5, and a freshness statement that is this old.
async fn proved(keys: &Keys, seconds_ago: u64) -> (World, Answers, Agent) {
    let (world, edge) = World::with_edge().await;
    // It knows the agent: there are batch polls, and events.
    edge.answers.assign(&[]);
    edge.answers.publish_at(&shop(), with_content("one"), 5);
    edge.answers.sign(&shop(), &keys.own);
    state(&edge.answers, &statement(5, "one", seconds_ago), &keys.own);
    let mut config = trusting(&world, &[edge.url()], &[&keys.own[0]]);
    config.admin_listen = Some("127.0.0.1:0".parse().expect("an address"));
    config.spread = Duration::ZERO;
    let mut agent = Agent::with_release(config).await;
    agent.running.prove_now();
    let is_proved = |status: &ServiceStatus| {
        status.freshness(SystemTime::now()).is_some_and(|assessed| assessed.current_at.is_some())
    };
    agent.until("it is proved", is_proved).await;
    (world, edge.answers.clone(), agent)
}

/// The edge turns honest, and the agent is as if nothing had been.
async fn recovers(world: &World, answers: &Answers, keys: &Keys, agent: &mut Agent, what: &str) {
    answers.fail_always(None);
    publish_two(answers, &keys.own, |_| {});
    agent.running.refresh_now(&shop());
    let has_two = |status: &ServiceStatus| status.release.as_ref().is_some_and(|release| release.generation == 6);
    agent.until("it has the next release", has_two).await;
    state(answers, &statement(6, "two", 0), &keys.own);
    agent.running.prove_now();
    agent.until("it is well", |status| problem(status).is_empty()).await;
    assert_eq!(
        (agent.admin("/readyz").await.1.as_str(), world.read("content").as_deref()),
        ("ready\n", Some("two")),
        "{what}"
    );
}

async fn survives(lie: Lie) {
    let Lie { what, tell, reason, metric: (name, labels) } = lie;
    let keys = Keys { own: [key()], stranger: [key()] };
    let (world, answers, mut agent) = proved(&keys, 0).await;
    let (one, before) = (world.current(), agent.metric(name, labels));
    tell(&answers, &keys);
    agent.running.prove_now();
    agent.poll().await;
    agent.until(what, |status| problem(status).contains(reason)).await;
    assert_degraded(&agent, what, reason).await;
    assert!(agent.metric(name, labels) > before, "{what} is not counted by {name}");
    // A refresh asks for everything, past every cache.
    agent.refresh().await;
    assert_eq!((world.current(), world.releases().len()), (one, 1), "{what}");
    assert_eq!(world.read("content").as_deref(), Some("one"), "{what}");
    assert_eq!(agent.status.borrow().release.as_ref().map(|release| release.generation), Some(5), "{what}");
    world.assert_no_leftovers();
    recovers(&world, &answers, &keys, &mut agent, what).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_survives_every_lie_of_its_edge_and_says_what_is_wrong() {
    join_all(lies().into_iter().map(survives)).await;
}

#[tokio::test]
async fn an_edge_that_is_frozen_is_seen() {
    let keys = Keys { own: [key()], stranger: [key()] };
    // It answers as it did eleven minutes ago: nothing is wrong with any answer.
    let (world, answers, mut agent) = proved(&keys, 11 * 60).await;
    assert_eq!(agent.poll().await.last_error, None);
    assert_degraded(&agent, "frozen", "the newest freshness statement is from").await;
    assert_eq!(agent.metric("weir_agent_proof_degraded", &[]), 1.0);
    recovers(&world, &answers, &keys, &mut agent, "frozen").await;
    agent.stop().await;
}

#[tokio::test]
async fn unsigned_numbers_of_rows_and_events_are_worth_nothing() {
    let keys = Keys { own: [key()], stranger: [key()] };
    let (world, answers, mut agent) = proved(&keys, 0).await;
    answers.claim(&shop(), u64::MAX);
    for refresh in [false, true] {
        let status = if refresh { agent.refresh().await } else { agent.poll().await };
        assert_eq!((status.last_error, status.release.unwrap().generation), (None, 5));
    }
    agent.until_metric("weir_agent_event_stream_connected", &[], 1.0).await;
    // A row is a reason to poll: in an event, and in the batch poll that follows lost events.
    for lost in [false, true] {
        answers.claim(&shop(), u64::MAX - u64::from(lost));
        let polls = agent.status.borrow().polls;
        answers.send(if lost { AgentEventKind::Resync } else { AgentEventKind::Changed(answers.row(&shop())) });
        let status = agent.until("the rows were followed", |status| status.polls > polls).await;
        assert_eq!((status.last_error, status.release.unwrap().generation), (None, 5));
    }
    recovers(&world, &answers, &keys, &mut agent, "a high number").await;
    agent.stop().await;
}
