//! An agent that has a staged version, and is no longer among those that it is for.

use std::time::SystemTime;

use serde_json::Value;
use weir_protocol::observed::Phase;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::TestEdge;
use crate::pin::command;
use crate::tarball::with_content;
use crate::trust::{key, publish_two, statement, trusting};

/// An agent that has "two" as generation 6, which is staged for others now. In force is "one". Returns the staged descriptor.
async fn left_out(world: &World, edge: &TestEdge, agent: &mut Agent) -> Value {
    let later = edge.answers.stage_for_others(&shop(), with_content("one"), 5);
    let status = agent.poll().await;
    assert_eq!((status.last_error.clone(), status.phase()), (None, Phase::Waiting));
    assert_eq!((status.release.unwrap().generation, status.desired.unwrap().generation), (6, 5));
    assert_eq!(world.read("content").as_deref(), Some("two"));
    later
}

#[tokio::test]
async fn what_is_staged_for_others_stays_and_anything_else_that_is_older_is_refused() {
    let (world, edge) = World::with_edge().await;
    edge.answers.publish_at(&shop(), with_content("two"), 6);
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    let later = left_out(&world, &edge, &mut agent).await;
    assert_eq!(agent.refresh().await.last_error, None, "also past all caches");
    assert_eq!(agent.metric("weir_agent_generation_regressions_total", &[]), 0.0);
    for (field, other) in [("generation", Value::from(7)), ("digest", format!("b3-{}", "0".repeat(64)).into())] {
        let mut changed = later.clone();
        changed["publication"][field] = other;
        edge.answers.stage(&shop(), &changed);
        let error = agent.poll().await.last_error.unwrap_or_else(|| panic!("{field}"));
        assert!(error.contains("generation 5, which is older than 6"), "{error}");
    }
    edge.answers.publish_at(&shop(), with_content("one"), 5);
    assert!(agent.poll().await.last_error.is_some(), "nothing is staged");
    // Another edge offers it, and gives the descriptor.
    edge.answers.describe(&shop(), &later);
    let status = agent.poll().await;
    assert_eq!((status.last_error.clone(), status.phase()), (None, Phase::Current));
    // It is published for all.
    edge.answers.publish_at(&shop(), with_content("two"), 6);
    let status = agent.poll().await;
    assert_eq!((status.last_error.clone(), status.phase(), status.switches), (None, Phase::Current, 1));
    // What ended it was above it.
    left_out(&world, &edge, &mut agent).await;
    edge.answers.publish_at(&shop(), with_content("one"), 7);
    assert_eq!(agent.poll().await.release.unwrap().generation, 7);
    agent.stop().await;
}

#[tokio::test]
async fn with_trust_the_envelope_of_the_staged_version_decides_and_its_statement_proves_it() {
    let (world, edge) = World::with_edge().await;
    let (keys, stranger) = ([key()], [key()]);
    publish_two(&edge.answers, &keys, |_| {});
    edge.answers.state_freshness(&shop(), statement(5, "one", 0).sign(&keys));
    edge.answers.state_freshness_of_staged(&shop(), statement(6, "two", 0).sign(&keys));
    let config = trusting(&world, &[edge.url()], &[&keys[0]]);
    let mut agent = Agent::with_release(config).await;
    let is_proved = |status: &weir_agent::ServiceStatus| {
        let assessed = status.freshness(SystemTime::now());
        assessed.is_some_and(|assessed| assessed.newest_generation == Some(6) && assessed.current_at.is_some())
    };
    let status = agent.until("it is proved", is_proved).await;
    assert_eq!(status.freshness(SystemTime::now()).unwrap().problem, None);
    let later = left_out(&world, &edge, &mut agent).await;
    // Unsigned numbers beside the envelope prove nothing.
    let mut forged = later.clone();
    edge.answers.publish_at(&shop(), with_content("two"), 6);
    edge.answers.sign(&shop(), &stranger);
    edge.answers.stage_for_others(&shop(), with_content("one"), 5);
    assert!(agent.poll().await.last_error.unwrap().contains("older than 6"));
    forged["envelope"] = Value::Null;
    edge.answers.stage(&shop(), &forged);
    assert!(agent.poll().await.last_error.unwrap().contains("older than 6"));
    edge.answers.stage(&shop(), &later);
    assert_eq!(agent.poll().await.last_error, None);
    edge.answers.describe(&shop(), &forged);
    assert!(agent.poll().await.last_error.unwrap().contains("older than 6"));
    edge.answers.describe(&shop(), &later);
    assert_eq!(agent.poll().await.last_error, None);
    agent.stop().await;
}

#[tokio::test]
async fn a_refresh_of_what_is_staged_for_others_repairs_it() {
    let (world, edge) = World::with_edge().await;
    let digest = edge.answers.publish_at(&shop(), with_content("two"), 6);
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    left_out(&world, &edge, &mut agent).await;
    edge.answers.forget();
    std::fs::write(world.service_dir().join("current/content"), "six").unwrap();
    let status = agent.refresh().await;
    assert_eq!((status.last_error.clone(), status.phase(), status.refreshes), (None, Phase::Waiting, 1));
    assert_eq!((status.release.unwrap().generation, world.read("content").as_deref()), (6, Some("two")));
    assert_eq!(edge.answers.seen().last().unwrap().path, format!("/v1/services/shop/tarballs/{digest}"));
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_was_rolled_back_to_the_version_in_force_waits_as_well() {
    let (world, edge) = World::with_edge().await;
    let one = edge.answers.publish_at(&shop(), with_content("one"), 5);
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    edge.answers.publish_at(&shop(), with_content("two"), 6);
    agent.poll().await;
    assert!(command(&world, &["rollback", "shop"]).await.status.success());
    agent.until("it is pinned", |status| status.pinned.is_some()).await;
    let later = edge.answers.stage_for_others(&shop(), with_content("one"), 5);
    let status = agent.poll().await;
    assert_eq!((status.last_error, status.pinned.unwrap().offered), (None, Some(one)));
    edge.answers.publish_at(&shop(), with_content("one"), 5);
    assert!(agent.poll().await.last_error.is_some(), "nothing is staged");
    edge.answers.stage(&shop(), &later);
    assert!(command(&world, &["unpin", "shop"]).await.status.success());
    agent.until("it is not pinned", |status| status.pinned.is_none()).await;
    for status in [agent.poll().await, agent.refresh().await] {
        assert_eq!((status.last_error.clone(), status.phase()), (None, Phase::Current));
        assert_eq!(status.release.unwrap().generation, 5);
    }
    edge.answers.publish_at(&shop(), with_content("two"), 6);
    assert_eq!(agent.poll().await.release.unwrap().generation, 6);
    agent.stop().await;
}
