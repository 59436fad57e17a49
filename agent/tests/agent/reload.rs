//! What a running agent takes over from a changed configuration.

use clap::Parser;
use weir_agent::command_line::Args;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::Fault;
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
