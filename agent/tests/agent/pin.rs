//! `weir-agent rollback` and `unpin`, beside a running agent and without one.

use std::fs;
use std::process::{Command, Output};

use weir_protocol::observed::HookState;

use crate::agent_under_test::{Agent, World, shop};
use crate::assigned::until;
use crate::edge::{Fault, TestEdge};
use crate::tarball::{Written, with_content};

pub(crate) async fn command(world: &World, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-agent"));
    command.env_clear().env("WEIR_ROOT", world.path().join("root")).args(arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// An agent that had three releases; exec logs each.
async fn three(world: &World) -> (TestEdge, Vec<String>, Agent) {
    let edge = world.edge().await;
    let mut config = world.config(&[edge.url()]);
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    let log = world.path().join("log");
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    config.services[0].exec = Some(format!("echo \"$(cat content) $WEIR_REVISION\" >> {}", log.display()).into());
    let mut digests = vec![edge.answers.publish(&shop(), with_content("1")).0.to_string()];
    let mut agent = Agent::with_release(config).await;
    for content in ["2", "3"] {
        digests.push(edge.answers.publish(&shop(), with_content(content)).0.to_string());
        agent.poll().await;
    }
    agent.until("exec has run", |status| status.hook == HookState::Succeeded).await;
    (edge, digests, agent)
}

fn last_line(world: &World) -> String {
    fs::read_to_string(world.path().join("log")).unwrap().lines().last().unwrap().to_owned()
}

#[tokio::test]
async fn a_running_agent_goes_back_stays_there_and_follows_again() {
    let world = World::new();
    let (edge, digests, mut agent) = three(&world).await;
    let runs = agent.status.borrow().hook_runs;
    let output = command(&world, &["rollback", "shop"]).await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.current().as_ref(), Some(&digests[1]));
    let status = agent.until("exec has run", |s| s.hook_runs > runs && s.hook == HookState::Succeeded).await;
    let shown = agent.shown().await;
    assert_eq!(shown["services"]["shop"]["pinned"]["digest"], digests[1], "{shown}");
    assert_eq!(status.pinned.unwrap().digest.to_string(), digests[1]);
    assert_eq!(last_line(&world), format!("2 sha1:{}", crate::edge::commit(2)), "with what is known of it");
    assert_eq!(agent.metric("weir_agent_pinned", &[]), 1.0);

    // Changes are seen, not fetched.
    let (four, generation) = edge.answers.publish(&shop(), with_content("4"));
    edge.answers.forget();
    for status in [agent.poll().await, agent.refresh().await] {
        assert_eq!((status.last_error, status.pinned.unwrap().offered), (None, Some(four)));
    }
    let gets: Vec<_> = edge.answers.seen().into_iter().filter(|seen| seen.method == http::Method::GET).collect();
    assert_eq!(gets.len(), 1, "the refresh fetches the pinned version");
    assert_eq!(gets[0].path, format!("/v1/services/shop/tarballs/{}", digests[1]));
    assert_eq!(gets[0].headers["cache-control"], "no-cache");
    let shown: serde_json::Value = serde_json::from_str(&agent.admin("/status").await.1).unwrap();
    let pinned = &shown["services"]["shop"]["pinned"];
    assert_eq!(
        (&pinned["digest"], &pinned["offered"]),
        (&digests[1].as_str().into(), &four.to_string().into()),
        "{shown:#}"
    );
    assert!(pinned["since"].is_string());
    // A second one names its release, by the beginning of its digest.
    let output = command(&world, &["rollback", "shop"]).await;
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("is pinned to"));
    assert!(command(&world, &["rollback", "shop", &digests[0][..20]]).await.status.success());
    assert_eq!(world.current().as_ref(), Some(&digests[0]));
    let output = command(&world, &["rollback", "shop", "b3-none"]).await;
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains(&digests[2]), "{output:?}");

    // A pin survives a restart, and an edge that went back is refused all the same.
    agent.stop().await;
    edge.answers.publish_at(&shop(), with_content("2"), 2);
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    let status = agent.until("the first poll has ended", |status| status.polls > 0).await;
    assert!(status.last_error.unwrap().contains("generation 2"), "the highest generation stays");
    assert_eq!(world.current().as_ref(), Some(&digests[0]));
    edge.answers.publish_at(&shop(), with_content("4"), generation);

    assert!(command(&world, &["unpin", "shop"]).await.status.success());
    agent
        .until("it follows again", |status| {
            status.pinned.is_none() && status.release.as_ref().is_some_and(|r| r.digest == four)
        })
        .await;
    assert_eq!(agent.metric("weir_agent_pinned", &[]), 0.0);
    agent.stop().await;
    assert!(String::from_utf8_lossy(&command(&world, &["unpin", "shop"]).await.stdout).contains("was not pinned"));
}

#[tokio::test]
async fn without_an_agent_the_release_is_switched_at_once() {
    let world = World::new();
    let (edge, digests, agent) = three(&world).await;
    agent.stop().await;
    assert!(command(&world, &["rollback", "shop"]).await.status.success());
    assert_eq!(world.current().as_ref(), Some(&digests[1]));
    // A kill between the pin and the switch: the next agent goes on.
    let link = world.service_dir().join("current");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(format!("releases/{}", digests[2]), &link).unwrap();
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    agent.until("the first poll has ended", |status| status.polls > 0).await;
    assert_eq!(world.current().as_ref(), Some(&digests[1]));

    // A release that somebody removed cannot be gone back to: the current one stays.
    fs::write(world.path().join("root/.pins/shop"), format!("b3-{}\n", "0".repeat(64))).unwrap();
    let status = agent.until("the pin has failed", |status| status.last_error.is_some()).await;
    assert!(status.last_error.unwrap().contains("no longer on disk"));
    assert_eq!(world.current().as_ref(), Some(&digests[1]));
    agent.stop().await;

    let output = command(&world, &["rollback", "unknown"]).await;
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("`unknown`"), "{output:?}");
}

#[tokio::test]
async fn a_release_that_was_changed_through_a_link_is_not_rolled_back_to() {
    let (world, edge) = World::with_edge().await;
    let mut config = world.config(&[edge.url()]);
    config.releases.unchanged = weir_release::Unchanged::Link;
    let publish = |content| {
        let tar = Written::default().file("content", content).file("same", "same").finish();
        edge.answers.publish(&shop(), tar).0.to_string()
    };
    let one = publish("1");
    let mut agent = Agent::with_release(config).await;
    let two = publish("2");
    agent.poll().await;
    let current = world.service_dir().join("current");
    fs::write(current.join("same"), "changed").unwrap();
    let of = |digest: &str| fs::read_to_string(world.service_dir().join("releases").join(digest).join("same")).unwrap();
    assert_eq!((of(&one), of(&two)), ("changed".to_owned(), "changed".to_owned()), "it is one file");
    // It comes from an edge.
    assert!(command(&world, &["rollback", "shop"]).await.status.success());
    let repaired = Some(format!("{one}.1"));
    assert_eq!(world.current(), repaired);
    let content = |name| fs::read_to_string(current.join(name)).unwrap();
    assert_eq!((content("content"), content("same")), ("1".to_owned(), "same".to_owned()));
    agent.stop().await;
    // Without an agent there is no other one.
    let output = command(&world, &["rollback", "shop", &two[..20]]).await;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("no longer on disk as it was"), "{error}");
    assert_eq!(world.current(), repaired);
}

#[tokio::test]
async fn a_pinned_release_is_compared_and_repaired() {
    let world = World::new();
    let (edge, digests, mut agent) = three(&world).await;
    assert!(command(&world, &["rollback", "shop"]).await.status.success());
    let current = || world.service_dir().join("current");
    let refused = edge.answers.publish(&shop(), with_content("4")).0;
    agent.until("it is polled", |s| s.pinned.as_ref().is_some_and(|pinned| pinned.offered.is_some())).await;

    fs::write(current().join("content"), "changed").unwrap();
    let runs = agent.status.borrow().hook_runs;
    assert_eq!(agent.refresh().await.last_error, None);
    assert_eq!((world.read("content").as_deref(), world.current()), (Some("2"), Some(format!("{}.1", digests[1]))));
    assert_eq!(agent.metric("weir_agent_refresh_repaired_total", &[]), 1.0);
    let status = agent.until("exec has run", |s| s.hook_runs > runs && s.hook == HookState::Succeeded).await;
    let release = status.release.unwrap();
    assert_eq!((release.generation, status.pinned.unwrap().offered), (2, Some(refused)), "its own generation");
    assert_eq!(last_line(&world), format!("2 sha1:{}", crate::edge::commit(2)));

    // All copies are deleted: the version is fetched by its digest.
    let runs = agent.status.borrow().hook_runs;
    fs::remove_dir_all(world.service_dir().join("releases")).unwrap();
    assert_eq!(agent.admin("/readyz").await.0, 503);
    assert_eq!(agent.poll().await.last_error, None);
    assert_eq!((world.read("content").as_deref(), world.current().as_ref()), (Some("2"), Some(&digests[1])));
    agent.until("exec has run", |s| s.hook_runs > runs && s.hook == HookState::Succeeded).await;
    assert_eq!(last_line(&world), format!("2 sha1:{}", crate::edge::commit(2)));

    // No edge has it any more: there is nothing to compare it with.
    edge.answers.drop_retained();
    fs::write(current().join("content"), "changed").unwrap();
    assert_eq!(agent.refresh().await.last_error, None);
    assert_eq!(world.read("content").as_deref(), Some("changed"));
    fs::remove_dir_all(world.service_dir().join("releases")).unwrap();
    let error = agent.poll().await.last_error.unwrap();
    assert!(error.contains("no longer on disk"), "{error}");
    agent.stop().await;
}

#[tokio::test]
async fn a_rollback_waits_for_neither_a_download_nor_a_check() {
    let (world, edge) = World::with_edge().await;
    let begun = world.path().join("begun");
    let mut config = world.config(&[edge.url()]);
    config.idle_timeout = crate::agent_under_test::NEVER;
    config.services[0].check =
        Some(format!("test \"$(cat content)\" != checked || {{ touch {}; sleep 1000; }}", begun.display()).into());
    let one = edge.answers.publish(&shop(), with_content("one")).0.to_string();
    let mut agent = Agent::with_release(config).await;
    let two = edge.answers.publish(&shop(), with_content("two")).0.to_string();
    agent.poll().await;

    edge.answers.publish(&shop(), with_content("x".repeat(300_000)));
    edge.answers.fail_always(Fault::Stall);
    edge.answers.forget();
    agent.running.poll_now(&shop());
    until("the download has begun", || edge.answers.seen().iter().any(|seen| seen.method == http::Method::GET)).await;
    let output = command(&world, &["rollback", "shop"]).await;
    assert!(output.status.success() && world.current() == Some(one.clone()), "{output:?}");

    // The other way round, in a refresh of the pinned version.
    edge.answers.forget();
    agent.running.refresh_now(&shop());
    until("the download has begun", || edge.answers.seen().iter().any(|seen| seen.path.contains("tarballs"))).await;
    edge.answers.fail_always(None);
    edge.answers.publish(&shop(), with_content("checked"));
    assert!(command(&world, &["unpin", "shop"]).await.status.success());
    until("the check runs", || begun.exists()).await;
    let output = command(&world, &["rollback", "shop", &two]).await;
    assert!(output.status.success() && world.current() == Some(two), "{output:?}");
    agent.stop().await;
}
