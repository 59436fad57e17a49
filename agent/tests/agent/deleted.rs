//! Somebody deletes what a running agent has on disk.

use std::fs;
use std::time::Duration;

use weir_agent::start;
use weir_protocol::observed::HookState;

use crate::agent_under_test::{Agent, NEVER, World, shop};
use crate::edge::TestEdge;
use crate::tarball::with_content;

/// An agent that has had two releases.
async fn running(world: &World, edge: &TestEdge, poll_interval: Duration) -> Agent {
    let mut config = world.config(&[edge.url()]);
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    config.spread = Duration::ZERO;
    config.poll_interval = poll_interval;
    config.services[0].exec = Some("true".into());
    edge.answers.publish(&shop(), with_content("zero"));
    let mut agent = Agent::with_release(config).await;
    edge.answers.publish(&shop(), with_content("one"));
    agent.running.poll_now(&shop());
    agent.until("it has the second one", |status| status.switches == 2).await;
    agent
}

#[tokio::test]
async fn what_is_deleted_is_back_at_the_next_poll() {
    let (world, edge) = World::with_edge().await;
    let mut agent = running(&world, &edge, NEVER).await;
    let mut version = "one".to_owned();
    for name in [
        "shop/state",
        "shop/incoming",
        "shop/current",
        "shop/releases/current",
        "shop/releases/previous",
        "shop/releases",
        "shop",
        ".lock",
        ".pins",
        "",
    ] {
        agent.until("the hook has run", |status| status.hook == HookState::Succeeded).await;
        let mut path = world.path().join("root").join(name);
        if let Some(which) = name.strip_prefix("shop/releases/") {
            let (current, mut releases) = (world.current().unwrap(), world.releases());
            releases.retain(|release| (*release == current) == (which == "current"));
            path.set_file_name(&releases[0]);
        }
        match fs::symlink_metadata(&path) {
            Err(_) => assert_eq!(name, ".pins", "it is there"),
            Ok(found) if found.is_dir() => fs::remove_dir_all(&path).unwrap(),
            Ok(_) => fs::remove_file(&path).unwrap(),
        }
        let (code, ready) = agent.admin("/readyz").await;
        let expected = if world.read("content").is_some() { 200 } else { 503 };
        assert!(code == expected && ready.contains("shop") == (code == 503), "{name}: {code} {ready}");

        assert_eq!(agent.poll().await.last_error, None, "{name}");
        assert_eq!(world.read("content"), Some(version), "{name}");
        assert_eq!(agent.admin("/readyz").await.0, 200, "{name}");
        assert!(world.service_dir().join("state").is_file(), "{name}");
        if [".lock", ""].contains(&name) {
            let error = start(world.config(&[edge.url()])).await.err().expect("the root is locked").to_string();
            assert!(error.contains("another agent"), "{name}: {error}");
        }
        // And what comes next is followed.
        version = format!("after {name}");
        edge.answers.publish(&shop(), with_content(&version));
        assert_eq!(agent.poll().await.last_error, None, "{name}");
        assert_eq!(world.read("content").as_ref(), Some(&version), "{name}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_batch_poll_notices_it_too() {
    let (world, edge) = World::with_edge().await;
    edge.answers.assign(&[]);
    let mut agent = running(&world, &edge, Duration::from_secs(1)).await;
    agent.until("it was confirmed", |status| status.unchanged > 0).await;
    let release = fs::canonicalize(world.service_dir().join("current")).unwrap();
    fs::remove_file(world.service_dir().join("current")).unwrap();
    agent.until("`current` is back", |status| status.switches == 3).await;
    fs::remove_dir_all(release).unwrap();
    agent.until("the release is back", |status| status.switches == 4).await;
    assert_eq!(world.read("content").as_deref(), Some("one"));
    agent.stop().await;
}
