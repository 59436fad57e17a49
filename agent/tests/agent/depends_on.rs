//! `depends_on`: which service switches first.

use std::path::Path;
use std::time::Duration;

use http::Method;
use weir_agent::config::ServiceConfig;
use weir_agent::{Config, once};
use weir_protocol::name::ServiceName;
use weir_protocol::observed::{HookState, Phase, ProblemKind};
use weir_release::{Modes, remove_pin, write_pin};

use crate::agent_under_test::{Agent, World, shop};
use crate::assigned::until;
use crate::edge::{Fault, TestEdge};
use crate::tarball::with_content;

fn crds() -> ServiceName {
    "crds".parse().unwrap()
}

/// `shop` depends on `crds`, whose hook passes once a file with the name of its content exists. Both log.
fn dependent(world: &World, edge: &TestEdge) -> Config {
    let (log, dir) = (world.path().join("log"), world.path().display());
    let mut config = world.config(&[edge.url()]);
    config.spread = Duration::ZERO;
    config.services[0].depends_on = vec!["crd*".parse().unwrap()];
    config.services[0].exec = Some(format!("echo shop $(cat content) >> {}", log.display()).into());
    let wait = format!("until [ -e {dir}/$(cat content) ]; do sleep 0.05; done");
    let exec = Some(format!("{wait}; echo crds $(cat content) >> {}", log.display()).into());
    config.services.push(ServiceConfig { exec, ..ServiceConfig::new(&crds()) });
    config
}

fn lines(folder: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_service_switches_after_the_hooks_of_those_that_it_depends_on() {
    let (world, edge) = World::offering("1").await;
    edge.answers.assign(&[]);
    edge.answers.publish(&crds(), with_content("a"));
    let pass = |content: &str| std::fs::write(world.path().join(content), "").unwrap();
    let mut agent = Agent::start(dependent(&world, &edge)).await;
    let waits = |status: &weir_agent::ServiceStatus| {
        status.last_error.as_ref().is_some_and(|error| error.contains("waits for `crds`, whose hooks"))
    };
    agent.until("it waits", waits).await;
    assert_eq!((world.current(), lines(world.path())), (None, vec![]));
    let row = || edge.answers.observed_row(&shop()).filter(|row| row.problem.is_some());
    until("the edge is told", || row().is_some()).await;
    let (phase, problem) = (row().unwrap().phase, row().unwrap().problem.unwrap());
    assert_eq!((phase, problem.kind), (Phase::Waiting, ProblemKind::Dependency));
    assert!(problem.text.contains("`crds`"), "{problem:?}");
    pass("a");
    let status = agent.until("its own hooks have run", |status| status.hook == HookState::Succeeded).await;
    assert_eq!(lines(world.path()), ["crds a", "shop 1"]);
    assert!(status.last_error.is_none() && status.transfer.is_some(), "{status:?}");
    let gets = |seen: &crate::edge::Seen| seen.method == Method::GET && seen.path.contains("shop/tarball");
    assert_eq!(edge.answers.seen().iter().filter(|seen| gets(seen)).count(), 1, "what waited is on disk");

    // One commit changes both.
    edge.answers.publish(&crds(), with_content("b"));
    agent.running.poll_now(&crds());
    let mut other = agent.running.service(&crds()).unwrap();
    other.wait_for(|status| status.switches == 2).await.unwrap();
    edge.answers.publish(&shop(), with_content("2"));
    agent.poll().await;
    assert_eq!(world.read("content").as_deref(), Some("1"));
    pass("b");
    agent.until("it has switched", |status| status.switches == 2 && status.hook == HookState::Succeeded).await;
    assert_eq!(lines(world.path())[2..], ["crds b", "shop 2"]);
    agent.stop().await;
}

#[tokio::test]
async fn a_rollback_does_not_wait_and_a_pinned_dependency_counts() {
    let (world, edge) = World::offering("1").await;
    let (first, _) = edge.answers.publish(&crds(), with_content("a"));
    std::fs::write(world.path().join("a"), "").unwrap();
    let mut agent = Agent::with_release(dependent(&world, &edge)).await;
    let digest = agent.status.borrow().release.clone().unwrap().digest;
    edge.answers.publish(&shop(), with_content("2"));
    agent.poll().await;
    assert_eq!(world.read("content").as_deref(), Some("2"));
    edge.answers.publish(&crds(), with_content("never"));
    agent.running.poll_now(&crds());
    let mut other = agent.running.service(&crds()).unwrap();
    other.wait_for(|status| status.switches == 2).await.unwrap();

    let root = world.path().join("root");
    write_pin(&root, &shop(), digest, Modes::default()).unwrap();
    agent.until("it is back", |status| status.pinned.is_some() && status.switches == 3).await;
    assert_eq!(world.read("content").as_deref(), Some("1"));
    remove_pin(&root, &shop()).unwrap();
    agent.until("it waits", |status| status.pinned.is_none() && status.last_error.is_some()).await;
    assert_eq!(world.read("content").as_deref(), Some("1"));
    // The hook of what it goes back to has to end.
    std::fs::write(world.path().join("never"), "").unwrap();
    write_pin(&root, &crds(), first, Modes::default()).unwrap();
    agent.until("it has switched", |status| status.switches == 4).await;
    assert_eq!(world.read("content").as_deref(), Some("2"));
    agent.stop().await;
}

#[tokio::test]
async fn once_fails_with_the_name_of_what_is_waited_for() {
    let (world, edge) = World::offering("1").await;
    edge.answers.publish(&crds(), with_content("a"));
    let mut config = dependent(&world, &edge);
    config.services[0].depends_on.clear();
    config.services[1].depends_on = vec!["shop".parse().unwrap()];
    edge.answers.fail_service(&shop(), Fault::Status(503, None));
    let failed = once(config.clone(), Duration::from_secs(2)).await.unwrap_err().to_string();
    assert!(failed.contains("crds: the switch waits for `shop`: no edge has said yet"), "{failed}");
    config.services[0].depends_on = vec!["crds".parse().unwrap()];
    let refused = once(config.clone(), Duration::from_secs(60)).await.unwrap_err().to_string();
    assert!(refused.contains("crds → shop → crds"), "{refused}");
}

#[tokio::test]
async fn a_cycle_by_patterns_is_a_problem_that_names_all() {
    let (world, edge) = World::offering("1").await;
    edge.answers.assign(&[]);
    edge.answers.publish(&crds(), with_content("a"));
    let mut config = dependent(&world, &edge);
    config.services[1].depends_on = vec!["sho*".parse().unwrap()];
    let agent = Agent::start(config).await;
    let text = || edge.answers.observed_row(&shop()).and_then(|row| Some(row.problem?.text)).unwrap_or_default();
    until("the edge is told", || text().contains("waits for itself, by `crds` → `shop`")).await;
    assert_eq!(world.current(), None);
    agent.stop().await;
}
