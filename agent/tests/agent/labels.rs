//! Labels in hooks.

use std::time::Duration;

use weir_agent::{Config, once};
use weir_protocol::agent_event::AgentEventKind;
use weir_protocol::observed::{HookState, ProblemKind};

use crate::agent_under_test::{Agent, World, shop};
use crate::assigned::until;
use crate::edge::{Fault, TestEdge};
use crate::tarball::with_content;

/// `exec` logs what it gets, and how many paths have changed.
fn labelled(world: &World, edge: &TestEdge) -> Config {
    let mut config = world.config(&[edge.url()]);
    config.spread = Duration::ZERO;
    config.services[0].labels = true;
    let log = world.path().join("log");
    let line = "$WEIR_AGENT $WEIR_LABEL_RING $WEIR_LABEL_BAD $(cat $WEIR_LABELS) $(cat $WEIR_CHANGES | wc -l)";
    config.services[0].exec = Some(format!("echo \"{line}\" >> {}", log.display()).into());
    config
}

fn log(world: &World) -> Vec<String> {
    std::fs::read_to_string(world.path().join("log")).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn hooks_wait_for_labels_and_run_again_with_others() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[]);
    let config = labelled(&world, &edge);
    let mut agent = Agent::with_release(config.clone()).await;
    let waits = |status: &weir_agent::ServiceStatus| {
        status.hook == HookState::Pending && status.hook_error.as_ref().is_some_and(|error| error.contains("`labels`"))
    };
    agent.until("the hooks wait", waits).await;
    let problem = || edge.answers.observed_row(&shop()).and_then(|row| row.problem);
    until("the edge is told", || problem().is_some_and(|problem| problem.kind == ProblemKind::Other)).await;
    until("the stream is open", || edge.answers.streams() == 1).await;
    edge.answers.label(r#"{"bad":"$(id)","ring":"canary"}"#);
    edge.answers.send(AgentEventKind::Resync);
    agent.until("they have run", |status| status.hook == HookState::Succeeded && status.hook_runs == 1).await;
    edge.answers.label(r#"{"ring":"all"}"#);
    edge.answers.send(AgentEventKind::Resync);
    let status = agent.until("they have run again", |status| status.hook_runs == 2).await;
    assert_eq!((status.hook, status.switches, status.hook_error), (HookState::Succeeded, 1, None));
    let expected = [r#"cluster-1 canary  {"ring":"canary"} 1"#, r#"cluster-1 all  {"ring":"all"} 1"#];
    assert_eq!(log(&world), expected, "all paths are changes, and no value can be a command");
    until("the edge is told", || problem().is_none()).await;

    // An answer without labels takes none away, and a restart needs no edge.
    edge.answers.label("{}");
    edge.answers.send(AgentEventKind::Resync);
    until("it has polled", || edge.answers.batch_polls().len() >= 4).await;
    edge.answers.publish(&shop(), with_content("two"));
    agent.poll().await;
    agent.until("they have run", |status| status.hook_runs == 3).await;
    agent.stop().await;
    edge.answers.fail_always(Fault::Status(503, None));
    let mut agent = Agent::start(config).await;
    let status = agent.until("a poll has failed", |status| status.errors > 0).await;
    assert_eq!((status.hook, status.hook_runs), (HookState::Succeeded, 0));
    assert_eq!(log(&world)[2..], [r#"cluster-1 all  {"ring":"all"} 1"#]);
    agent.stop().await;
}

#[tokio::test]
async fn a_check_with_labels_does_not_run_without_and_once_says_so() {
    let (world, edge) = World::offering("one").await;
    edge.answers.assign(&[]);
    let mut config = labelled(&world, &edge);
    config.services[0].check = Some("test $WEIR_LABEL_RING = canary".into());
    let failed = once(config.clone(), Duration::from_secs(2)).await.unwrap_err().to_string();
    assert!(failed.contains("shop: the switch waits for labels"), "{failed}");
    assert_eq!(world.current(), None);
    config.services[0].check = None;
    let failed = once(config.clone(), Duration::from_secs(2)).await.unwrap_err().to_string();
    assert!(failed.contains("shop: the hooks use `labels`"), "{failed}");
    assert_eq!(log(&world), [""; 0]);
    edge.answers.label(r#"{"ring":"canary"}"#);
    config.services[0].check = Some("test $WEIR_LABEL_RING = canary".into());
    once(config, Duration::from_secs(60)).await.unwrap();
    assert_eq!(log(&world), [r#"cluster-1 canary  {"ring":"canary"} 1"#]);
}
